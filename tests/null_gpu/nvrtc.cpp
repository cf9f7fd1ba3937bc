// The compiler of the kernels that PyTorch writes as it runs: it makes nothing, for a GPU that runs nothing.

#include <cstddef>

#define API extern "C" __attribute__((visibility("default")))

API int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 2, 0; }
API const char* nvrtcGetErrorString(int) { return "error of the null GPU"; }
API int nvrtcCreateProgram(void** program, ...) { return *program = nullptr, 0; }
API int nvrtcDestroyProgram(void**) { return 0; }
API int nvrtcAddNameExpression(void*, const char*) { return 0; }
API int nvrtcCompileProgram(void*, int, const char**) { return 0; }
API int nvrtcGetPTXSize(void*, size_t* bytes) { return *bytes = 1, 0; }
API int nvrtcGetPTX(void*, char*) { return 0; }
API int nvrtcGetCUBINSize(void*, size_t* bytes) { return *bytes = 1, 0; }
API int nvrtcGetCUBIN(void*, char*) { return 0; }
API int nvrtcGetProgramLogSize(void*, size_t* bytes) { return *bytes = 0, 0; }
API int nvrtcGetProgramLog(void*, char*) { return 0; }
API int nvrtcGetLoweredName(void*, const char*, const char** name) { return *name = "written by PyTorch", 0; }
