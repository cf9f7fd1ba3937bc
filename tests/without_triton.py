"""Code for a process in which triton is not installed."""

WITHOUT_TRITON = """
import importlib.util, sys
class NoTriton:
    def find_spec(self, name, path=None, target=None):
        if name == "triton" or name.startswith("triton."):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, NoTriton())
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "triton" else real(name, *a)
"""
