// A GPU that computes nothing: the CUDA runtime, driver, cuBLAS and NCCL as far as PyTorch and Triton call them.
//
// Memory is the host's, a launch is counted and not carried out, and work takes no time, but for
// torch.cuda._sleep. The types of CUDA 13 that are needed are declared here, so no header of CUDA is.
// What stands neither here nor in `stubs.cpp`, which build.py generates, stays with the real libraries.

#include <cxxabi.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

using Status = int;
constexpr Status OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONFIGURATION = 9, INVALID_DEVICE = 101,
                 NOT_READY = 600, CAPTURE_UNSUPPORTED = 900;
constexpr double SPINS_PER_MS = 1755e3;  // of the device's clock, as `device_attribute` states it

struct Dim3 {
  unsigned x, y, z;
};

// The leading fields of cudaDeviceProp, whose size is 1008 bytes.
struct Properties {
  char name[256], uuid[16], luid[8];
  unsigned luid_mask;
  size_t total_memory, shared_per_block;
  int registers_per_block, warp_size;
  size_t pitch;
  int threads_per_block, block_size[3], grid_size[3];
  size_t constant_memory;
  int major, minor;
  size_t texture_alignment[2];
  int processors, integrated, can_map_host_memory;
  int before_bus[43], bus_id, before_addressing[4], unified_addressing, bus_width, l2_bytes, l2_persisting;
  int threads_per_processor, before_shared[4];
  size_t shared_per_processor;
  int registers_per_processor, managed, before_shared_optin[8];
  size_t shared_optin;
  char rest[1008 - 680];
};
static_assert(sizeof(Properties) == 1008 && offsetof(Properties, processors) == 384, "cudaDeviceProp of CUDA 13");
static_assert(offsetof(Properties, bus_id) == 568 && offsetof(Properties, threads_per_processor) == 604, "");
static_assert(offsetof(Properties, shared_per_processor) == 624 && offsetof(Properties, shared_optin) == 672, "");

struct PointerAttributes {
  int type, device;  // type 0: unknown to CUDA, 1: pinned memory of the host, 2: of the device
  void *device_pointer, *host_pointer;
  long reserved[8];
};

struct FunctionAttributes {
  size_t shared_bytes, constant_bytes, local_bytes;
  int threads_per_block, registers, ptx_version, binary_version, cache_mode, dynamic_shared;
  int rest[24];
};

struct LaunchConfiguration {  // cudaLaunchConfig_t and, in these fields, CUlaunchConfig
  Dim3 grid, block;
};

// A stream's work is done at `busy_until`; an event is reached when the work before it is.
struct Stream {
  double busy_until = 0;
  bool capturing = false;
  long captured = 0;
};

struct Event {
  double reached = 0;
};

std::mutex mutex;
std::map<std::string, long> counts;        // by kind: launch, library, triton, graph, nccl, copies, memset, waits
std::map<std::string, long> kernel_counts;  // by name
std::unordered_map<const void*, std::string> kernel_names;
void (*wait_hook)(const char*) = nullptr;
thread_local int current_device = 0;
thread_local bool waited_for_copy = false;  // PyTorch waits again after a copy that has waited
Stream default_stream;

int devices() {
  static const char* asked = getenv("NULL_GPUS");
  static int number = asked ? atoi(asked) : 1;
  return number;
}

double now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

void count(const char* kind, const std::string& kernel = "") {
  std::lock_guard<std::mutex> guard(mutex);
  counts[kind]++;
  if (!kernel.empty()) kernel_counts[kernel]++;
}

Stream& stream_of(void* handle) {  // 0, 1 and 2 are names of the default stream
  return reinterpret_cast<uintptr_t>(handle) <= 2 ? default_stream : *static_cast<Stream*>(handle);
}

std::set<Stream*>& capturing_streams() {
  static std::set<Stream*> streams;
  return streams;
}

// What the host waits for; while a graph is captured CUDA refuses it.
Status wait(const char* what, double until = 0) {
  if (!capturing_streams().empty()) {
    count("refused in a capture");
    return CAPTURE_UNSUPPORTED;
  }
  count(what);
  if (wait_hook) wait_hook(what);
  double ms = until - now_ms();
  if (ms > 0) {
    timespec t = {static_cast<time_t>(ms / 1e3), static_cast<long>(ms * 1e6) % 1000000000L};
    nanosleep(&t, nullptr);
  }
  return OK;
}

// Memory: a region per device, blocks of 512 bytes, freed ones kept by size.

constexpr size_t REGION = size_t(1) << 37;
char* memory = nullptr;
std::vector<size_t> used;
size_t live = 0;
std::unordered_map<void*, size_t> allocated;
std::map<std::pair<int, size_t>, std::vector<void*>> freed;
std::map<const char*, size_t> pinned;

void reserve_memory() {
  if (memory) return;
  used.resize(devices());
  memory = static_cast<char*>(mmap(nullptr, REGION * devices(), PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

int device_of(const void* p) {  // -1: the host
  auto address = static_cast<const char*>(p);
  return memory && address >= memory && address < memory + REGION * devices() ? (address - memory) / REGION : -1;
}

bool is_pinned(const void* p) {
  std::lock_guard<std::mutex> guard(mutex);
  auto address = static_cast<const char*>(p);
  auto after = pinned.upper_bound(address);
  if (after == pinned.begin()) return false;
  --after;
  return address < after->first + after->second;
}

Status allocate(void** p, size_t bytes) {
  std::lock_guard<std::mutex> guard(mutex);
  reserve_memory();
  bytes = bytes ? (bytes + 511) / 512 * 512 : 512;
  auto& kept = freed[{current_device, bytes}];
  if (!kept.empty()) {
    *p = kept.back();
    kept.pop_back();
  } else {
    if (used[current_device] + bytes > REGION) return OUT_OF_MEMORY;
    *p = memory + current_device * REGION + used[current_device];
    used[current_device] += bytes;
  }
  allocated[*p] = bytes;
  live += bytes;
  return OK;
}

Status release(void* p) {
  std::lock_guard<std::mutex> guard(mutex);
  auto found = allocated.find(p);
  if (found == allocated.end()) return OK;
  live -= found->second;
  freed[{device_of(p), found->second}].push_back(p);
  allocated.erase(found);
  return OK;
}

Status allocate_host(void** p, size_t bytes) {
  if (posix_memalign(p, 4096, bytes ? bytes : 1)) return OUT_OF_MEMORY;
  std::lock_guard<std::mutex> guard(mutex);
  pinned[static_cast<char*>(*p)] = bytes;
  return OK;
}

// A copy waits for the stream where a side of it is memory of the host that is not pinned.
Status copy(void* to, const void* from, size_t bytes, void* stream, bool blocking) {
  bool to_device = device_of(to) >= 0, from_device = device_of(from) >= 0;
  count(to_device ? (from_device ? "copy on the device" : "copy to the device") : "copy to the host");
  Status status = OK;
  bool pageable = (!to_device && !is_pinned(to)) || (!from_device && !is_pinned(from));
  if (blocking)
    status = wait("copy that blocks", stream_of(stream).busy_until);
  else if (pageable && from_device)
    status = wait("copy to pageable memory", stream_of(stream).busy_until), waited_for_copy = true;
  else if (pageable && !capturing_streams().empty())
    status = wait("copy from pageable memory");
  if (status == OK) memcpy(to, from, bytes);
  return status;
}

Status check_grid(Dim3 grid, Dim3 block) {
  bool fits = grid.x && grid.y && grid.z && grid.y <= 65535 && grid.z <= 65535 && block.x * block.y * block.z <= 1024;
  if (!fits) fprintf(stderr, "null GPU: no grid of %u x %u x %u is possible\n", grid.x, grid.y, grid.z);
  return fits ? OK : INVALID_CONFIGURATION;
}

std::string demangled(const std::string& name) {
  int status;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = text ? text : name;
  free(text);
  return result;
}

Status launch(const void* function, Dim3 grid, Dim3 block, void** arguments, void* handle) {
  if (Status status = check_grid(grid, block)) return status;
  waited_for_copy = false;
  auto found = kernel_names.find(function);
  std::string name = found == kernel_names.end() ? "?" : found->second;
  count("launch", name);
  Stream& stream = stream_of(handle);
  stream.captured += stream.capturing;
  if (name.find("spin_kernel") != std::string::npos) {  // torch.cuda._sleep(cycles)
    double start = stream.busy_until > now_ms() ? stream.busy_until : now_ms();
    stream.busy_until = start + *static_cast<int64_t*>(arguments[0]) / SPINS_PER_MS;
  }
  return OK;
}

int device_attribute(int attribute) {  // of an H100; cudaDeviceAttr and CUdevice_attribute share their numbers
  static const std::unordered_map<int, int> values = {
      {1, 1024},  {2, 1024},     {3, 1024},      {4, 64},   {5, 2147483647},  {6, 65535},    {7, 65535},
      {8, 49152}, {10, 32},      {12, 65536},    {13, 1755000}, {16, 132},    {36, 2619000}, {37, 5120},
      {38, 50 << 20}, {39, 2048}, {41, 1}, {75, 9}, {76, 0}, {81, 228 << 10}, {82, 65536}, {97, 227 << 10}, {106, 32}};
  auto found = values.find(attribute);
  return found == values.end() ? 0 : found->second;
}

}  // namespace

// For tests

API void null_reset() {
  std::lock_guard<std::mutex> guard(mutex);
  counts.clear();
  kernel_counts.clear();
}

API const char* null_counts(int of_kernels) {
  static std::string text;
  std::lock_guard<std::mutex> guard(mutex);
  text.clear();
  for (auto& [name, number] : of_kernels ? kernel_counts : counts)
    text += std::to_string(number) + "\t" + (of_kernels ? demangled(name) : name) + "\n";
  return text.c_str();
}

API void null_on_wait(void (*hook)(const char*)) { wait_hook = hook; }

API void null_count(const char* kind, const char* name) { count(kind, name); }  // for stubs.cpp

// Devices

API Status cudaGetDeviceCount(int* n) { return *n = devices(), OK; }
API Status cudaGetDevice(int* device) { return *device = current_device, OK; }
API Status cudaSetDevice(int device) {
  if (device < 0 || device >= devices()) return INVALID_DEVICE;
  return current_device = device, OK;
}
API Status cudaGetDeviceProperties(Properties* p, int device) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "Null H100");
  p->uuid[0] = p->bus_id = device + 1;
  p->total_memory = size_t(80) << 30;
  p->shared_per_block = 48 << 10;
  p->registers_per_block = p->registers_per_processor = 65536;
  p->warp_size = 32;
  p->threads_per_block = p->block_size[0] = p->block_size[1] = 1024;
  p->block_size[2] = 64;
  p->grid_size[0] = 2147483647;
  p->grid_size[1] = p->grid_size[2] = 65535;
  p->constant_memory = 65536;
  p->major = 9;
  p->processors = 132;
  p->can_map_host_memory = p->unified_addressing = p->managed = 1;
  p->bus_width = 5120;
  p->l2_bytes = 50 << 20;
  p->threads_per_processor = 2048;
  p->shared_per_processor = 228 << 10;
  p->shared_optin = 227 << 10;
  return OK;
}
API Status cudaDeviceGetAttribute(int* value, int attribute, int) { return *value = device_attribute(attribute), OK; }
API Status cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 1, OK; }
API Status cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return snprintf(text, length, "0000:%02x:00.0", device + 1), OK;
}
API Status cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, OK; }
API Status cudaDriverGetVersion(int* version) { return *version = 13020, OK; }
API Status cudaRuntimeGetVersion(int* version) { return *version = 13020, OK; }
API const char* cudaGetErrorString(Status status) {
  static thread_local char text[40];
  snprintf(text, sizeof text, "error %d of the null GPU", status);
  return text;
}
API const char* cudaGetErrorName(Status status) { return cudaGetErrorString(status); }

// Memory

API Status cudaMalloc(void** p, size_t bytes) { return allocate(p, bytes); }
API Status cudaMallocAsync(void** p, size_t bytes, void*) { return allocate(p, bytes); }
API Status cudaFree(void* p) { return release(p); }
API Status cudaFreeAsync(void* p, void*) { return release(p); }
API Status cudaMallocHost(void** p, size_t bytes) { return allocate_host(p, bytes); }
API Status cudaHostAlloc(void** p, size_t bytes, unsigned) { return allocate_host(p, bytes); }
API Status cudaFreeHost(void* p) {
  std::lock_guard<std::mutex> guard(mutex);
  pinned.erase(static_cast<char*>(p));
  free(p);
  return OK;
}
API Status cudaHostRegister(void* p, size_t bytes, unsigned) {
  std::lock_guard<std::mutex> guard(mutex);
  pinned[static_cast<char*>(p)] = bytes;
  return OK;
}
API Status cudaHostUnregister(void* p) {
  std::lock_guard<std::mutex> guard(mutex);
  pinned.erase(static_cast<char*>(p));
  return OK;
}
API Status cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *total = size_t(80) << 30;
  *free_bytes = *total - live;
  return OK;
}
API Status cudaPointerGetAttributes(PointerAttributes* a, const void* p) {
  memset(a, 0, sizeof *a);
  auto address = const_cast<void*>(p);
  if (int device = device_of(p); device >= 0)
    a->type = 2, a->device = device, a->device_pointer = address;
  else if (is_pinned(p))
    a->type = 1, a->device_pointer = a->host_pointer = address;
  return OK;
}
API Status cudaMemcpy(void* to, const void* from, size_t n, int) { return copy(to, from, n, nullptr, true); }
API Status cudaMemcpyAsync(void* to, const void* from, size_t n, int, void* s) { return copy(to, from, n, s, false); }
API Status cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t n, void* s) {
  return copy(to, from, n, s, false);
}
API Status cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                             size_t height, int, void* s) {
  for (size_t row = 0; row < height; row++)
    if (Status status = copy((char*)to + row * to_pitch, (const char*)from + row * from_pitch, width, s, false))
      return status;
  return OK;
}
API Status cudaMemset(void* p, int value, size_t bytes) { return count("memset"), memset(p, value, bytes), OK; }
API Status cudaMemsetAsync(void* p, int value, size_t bytes, void*) { return cudaMemset(p, value, bytes); }
API Status cudaGetSymbolAddress(void** p, const void*) { return allocate(p, 4096); }
API Status cudaGetSymbolSize(size_t* bytes, const void*) { return *bytes = 4096, OK; }

// Streams, events and graphs

API Status cudaStreamCreate(void** stream) { return *stream = new Stream, OK; }
API Status cudaStreamCreateWithFlags(void** stream, unsigned) { return cudaStreamCreate(stream); }
API Status cudaStreamCreateWithPriority(void** stream, unsigned, int) { return cudaStreamCreate(stream); }
API Status cudaStreamGetPriority(void*, int* priority) { return *priority = 0, OK; }
API Status cudaStreamSynchronize(void* s) {
  if (waited_for_copy) return waited_for_copy = false, OK;
  return wait("stream", stream_of(s).busy_until);
}
API Status cudaDeviceSynchronize() { return wait("device", default_stream.busy_until); }
API Status cudaStreamQuery(void* s) { return stream_of(s).busy_until > now_ms() ? NOT_READY : OK; }
API Status cudaStreamWaitEvent(void* s, Event* event, unsigned) {
  Stream& stream = stream_of(s);
  if (event->reached > stream.busy_until) stream.busy_until = event->reached;
  return OK;
}
API Status cudaStreamBeginCapture(void* s, int) {
  Stream& stream = stream_of(s);
  stream.capturing = true;
  stream.captured = 0;
  capturing_streams().insert(&stream);
  return OK;
}
API Status cudaStreamEndCapture(void* s, void** graph) {
  Stream& stream = stream_of(s);
  stream.capturing = false;
  capturing_streams().erase(&stream);
  return *graph = new long(stream.captured), OK;
}
API Status cudaStreamIsCapturing(void* s, int* status) { return *status = stream_of(s).capturing, OK; }
API Status cudaStreamGetCaptureInfo(void* s, int* status, unsigned long long* id, void** graph, void** dependencies,
                                    void** edges, size_t* number) {
  *status = stream_of(s).capturing;
  if (id) *id = 1;
  if (graph) *graph = nullptr;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (number) *number = 0;
  return OK;
}
API Status cudaThreadExchangeStreamCaptureMode(int*) { return OK; }
API Status cudaGraphGetNodes(void* graph, void*, size_t* number) { return *number = *static_cast<long*>(graph), OK; }
API Status cudaGraphInstantiate(void** executable, void* graph, unsigned long long) { return *executable = graph, OK; }
API Status cudaGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  return *executable = graph, OK;
}
API Status cudaGraphLaunch(void*, void*) { return count("graph"), OK; }
API Status cudaEventCreate(Event** event) { return *event = new Event, OK; }
API Status cudaEventCreateWithFlags(Event** event, unsigned) { return cudaEventCreate(event); }
API Status cudaEventDestroy(Event* event) { return delete event, OK; }
API Status cudaEventRecord(Event* event, void* s) {
  double busy_until = stream_of(s).busy_until;
  event->reached = busy_until > now_ms() ? busy_until : now_ms();
  return OK;
}
API Status cudaEventRecordWithFlags(Event* event, void* s, unsigned) { return cudaEventRecord(event, s); }
API Status cudaEventQuery(Event* event) { return event->reached > now_ms() ? NOT_READY : OK; }
API Status cudaEventSynchronize(Event* event) { return wait("event", event->reached); }
API Status cudaEventElapsedTime(float* ms, Event* start, Event* end) { return *ms = end->reached - start->reached, OK; }
API Status cudaLaunchHostFunc(void*, void (*function)(void*), void* data) { return function(data), OK; }
API Status cudaStreamAddCallback(void* s, void (*function)(void*, Status, void*), void* data, unsigned) {
  return function(s, OK, data), OK;
}

// PyTorch's own kernels

struct Pushed {
  Dim3 grid, block;
  size_t shared;
  void* stream;
};
static thread_local std::vector<Pushed> pushed;

API void** __cudaRegisterFatBinary(void*) { return static_cast<void**>(calloc(1, 16)); }
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*, void*, void*, void*,
                                int*) {
  kernel_names[function] = name;
}
API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
API char __cudaInitModule(void**) { return 1; }
API unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void* stream) {
  return pushed.push_back({grid, block, shared, stream}), 0;
}
API Status __cudaPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared, void* stream) {
  Pushed last = pushed.back();
  pushed.pop_back();
  *grid = last.grid, *block = last.block, *shared = last.shared, *static_cast<void**>(stream) = last.stream;
  return OK;
}
API Status __cudaGetKernel(void** kernel, const void* function) { return *kernel = const_cast<void*>(function), OK; }
API Status __cudaLaunchKernel(const void* f, Dim3 grid, Dim3 block, void** arguments, size_t, void* s) {
  return launch(f, grid, block, arguments, s);
}
API Status cudaLaunchKernel(const void* f, Dim3 grid, Dim3 block, void** arguments, size_t, void* s) {
  return launch(f, grid, block, arguments, s);
}
API Status cudaLaunchCooperativeKernel(const void* f, Dim3 grid, Dim3 block, void** arguments, size_t, void* s) {
  return launch(f, grid, block, arguments, s);
}
API Status cudaLaunchKernelExC(const LaunchConfiguration* c, const void* f, void** arguments) {
  return launch(f, c->grid, c->block, arguments, nullptr);
}
API Status cudaFuncGetAttributes(FunctionAttributes* a, const void*) {
  memset(a, 0, sizeof *a);
  a->threads_per_block = 1024;
  a->registers = 64;
  a->ptx_version = a->binary_version = 90;
  a->dynamic_shared = 227 << 10;
  return OK;
}
API Status cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void*, int, size_t) { return *n = 8, OK; }
API Status cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int, size_t, unsigned) {
  return *n = 8, OK;
}
static Status unknown_to_the_driver() { return OK; }
API Status cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long, int* found) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (!*function) *function = reinterpret_cast<void*>(unknown_to_the_driver);
  if (found) *found = 0;
  return OK;
}

// The driver, which Triton's launcher calls

API Status cuInit(unsigned) { return OK; }
API Status cuDriverGetVersion(int* version) { return *version = 13020, OK; }
API Status cuDeviceGetCount(int* n) { return *n = devices(), OK; }
API Status cuDeviceGet(int* device, int index) { return *device = index, OK; }
API Status cuDeviceGetName(char* name, int length, int) { return strncpy(name, "Null H100", length), OK; }
API Status cuDeviceGetAttribute(int* value, int attribute, int) { return *value = device_attribute(attribute), OK; }
API Status cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = size_t(80) << 30, OK; }
API Status cuDevicePrimaryCtxRetain(intptr_t* context, int device) { return *context = device + 1, OK; }
API Status cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) { return *flags = 0, *active = 1, OK; }
API Status cuCtxGetCurrent(intptr_t* context) { return *context = current_device + 1, OK; }
API Status cuCtxSetCurrent(intptr_t context) { return context ? cudaSetDevice(context - 1) : OK; }
API Status cuCtxPushCurrent_v2(intptr_t context) { return cuCtxSetCurrent(context); }
API Status cuCtxPopCurrent_v2(intptr_t* context) { return cuCtxGetCurrent(context); }
API Status cuCtxGetDevice(int* device) { return *device = current_device, OK; }
API Status cuGetErrorString(Status status, const char** text) { return *text = cudaGetErrorString(status), OK; }
API Status cuGetErrorName(Status status, const char** text) { return *text = cudaGetErrorString(status), OK; }
API Status cuModuleLoadData(void** module, const void*) { return *module = new char, OK; }
API Status cuModuleUnload(void*) { return OK; }
API Status cuModuleGetFunction(void** function, void*, const char* name) { return *function = strdup(name), OK; }
API Status cuFuncGetAttribute(int* value, int attribute, void*) {
  return *value = attribute == 0 ? 1024 : attribute == 4 ? 64 : 0, OK;
}
API Status cuFuncSetAttribute(void*, int, int) { return OK; }
API Status cuFuncSetCacheConfig(void*, int) { return OK; }
API Status cuStreamIsCapturing(void* s, int* status) { return cudaStreamIsCapturing(s, status); }
API Status cuLaunchKernelEx(const LaunchConfiguration* c, const char* name, void**, void**) {
  if (Status status = check_grid(c->grid, c->block)) return status;
  return count("triton", name), OK;
}
API Status cuLaunchKernel(const char* name, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                          unsigned, void*, void**, void**) {
  LaunchConfiguration configuration = {{x, y, z}, {bx, by, bz}};
  return cuLaunchKernelEx(&configuration, name, nullptr, nullptr);
}
API Status cuPointerGetAttribute(void* data, int attribute, void* p) {
  if (device_of(p) < 0) return INVALID_VALUE;
  if (attribute == 3)  // the pointer on the device
    *static_cast<void**>(data) = p;
  else
    *static_cast<int*>(data) = 0;
  return OK;
}
API Status cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, void*, int, size_t) { return *n = 8, OK; }
API Status cuOccupancyMaxActiveClusters(int* n, void*, const void*) { return *n = 8, OK; }

// cuBLAS and NCCL; their other functions are in stubs.cpp

API Status cublasCreate_v2(void** handle) { return *handle = calloc(1, 64), OK; }
API Status cublasDestroy_v2(void* handle) { return free(handle), OK; }
API Status cublasGetMathMode(void*, int* mode) { return *mode = 0, OK; }
API Status cublasGetPointerMode_v2(void*, int* mode) { return *mode = 0, OK; }
API size_t cublasLtGetVersion() { return 130400; }
API Status cublasLtMatmulDescCreate(void** d, int, int) { return *d = calloc(1, 256), OK; }
API Status cublasLtMatmulDescDestroy(void* d) { return free(d), OK; }
API Status cublasLtMatrixLayoutCreate(void** d, int, uint64_t, uint64_t, int64_t) { return *d = calloc(1, 256), OK; }
API Status cublasLtMatrixLayoutDestroy(void* d) { return free(d), OK; }
API Status cublasLtMatmulPreferenceCreate(void** d) { return *d = calloc(1, 256), OK; }
API Status cublasLtMatmulPreferenceDestroy(void* d) { return free(d), OK; }
API Status cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* result, int* n) {
  return memset(result, 0, 96), *n = 1, OK;  // one cublasLtMatmulHeuristicResult_t
}

// NCCL between processes of one machine, through memory that they share: calls block, in the order of the host.

constexpr size_t CHUNK = 1 << 20;

struct Meeting {
  std::atomic<int> arrived, generation;
};

struct Communicator {
  int ranks, rank;
  char* shared;  // a Meeting, and a chunk for each rank after the first page
  char* chunk(int of) { return shared + 4096 + of * CHUNK; }
};

struct UniqueId {
  char text[128];
};

static Status meet(Communicator* c) {
  auto meeting = reinterpret_cast<Meeting*>(c->shared);
  int generation = meeting->generation;
  if (++meeting->arrived == c->ranks) {
    meeting->arrived = 0;
    meeting->generation++;
    return OK;
  }
  for (double end = now_ms() + 120e3; meeting->generation == generation; usleep(200))
    if (now_ms() > end) return 6;  // ncclRemoteError
  return OK;
}

// Every rank hands in `bytes`, chunk by chunk; `take(offset, size)` reads what all of them have handed in.
template <class Take>
static Status exchange(Communicator* c, const void* from, size_t bytes, Take take) {
  for (size_t offset = 0; offset < bytes; offset += CHUNK) {
    size_t size = bytes - offset < CHUNK ? bytes - offset : CHUNK;
    memcpy(c->chunk(c->rank), static_cast<const char*>(from) + offset, size);
    if (Status status = meet(c)) return status;
    take(offset, size);
    if (Status status = meet(c)) return status;
  }
  return OK;
}

static size_t size_of(int type) {
  static const int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // ncclDataType_t
  return sizes[type];
}

template <class Number>
static void add_up(Communicator* c, char* to, size_t size) {
  auto sums = reinterpret_cast<Number*>(to);
  for (size_t i = 0; i < size / sizeof(Number); i++) {
    sums[i] = 0;
    for (int rank = 0; rank < c->ranks; rank++) sums[i] += reinterpret_cast<Number*>(c->chunk(rank))[i];
  }
}

API Status ncclGetVersion(int* version) { return *version = 23007, OK; }
API const char* ncclGetErrorString(Status) { return "error of the null GPU"; }
API const char* ncclGetLastError(void*) { return ""; }
API Status ncclGetUniqueId(UniqueId* id) {
  memset(id, 0, sizeof *id);
  snprintf(id->text, sizeof id->text, "/null-nccl-%d-%.0f", getpid(), 1e6 * now_ms());
  return OK;
}
API Status ncclCommInitRank(Communicator** c, int ranks, UniqueId id, int rank) {
  size_t bytes = 4096 + ranks * CHUNK;
  int file = shm_open(id.text, O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, bytes)) return 2;  // ncclSystemError
  auto shared = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  close(file);
  *c = new Communicator{ranks, rank, shared};
  Status status = meet(*c);
  shm_unlink(id.text);
  return status;
}
API Status ncclCommInitRankConfig(Communicator** c, int ranks, UniqueId id, int rank, void*) {
  return ncclCommInitRank(c, ranks, id, rank);
}
API Status ncclCommCount(Communicator* c, int* ranks) { return *ranks = c->ranks, OK; }
API Status ncclCommUserRank(Communicator* c, int* rank) { return *rank = c->rank, OK; }
API Status ncclCommGetAsyncError(void*, int* status) { return *status = 0, OK; }
API Status ncclBroadcast(const void* from, void* to, size_t number, int type, int root, Communicator* c, void*) {
  count("nccl", "ncclBroadcast");
  return exchange(c, from, number * size_of(type), [&](size_t offset, size_t size) {
    memcpy(static_cast<char*>(to) + offset, c->chunk(root), size);
  });
}
API Status ncclAllGather(const void* from, void* to, size_t number, int type, Communicator* c, void*) {
  count("nccl", "ncclAllGather");
  size_t share = number * size_of(type);
  return exchange(c, from, share, [&](size_t offset, size_t size) {
    for (int rank = 0; rank < c->ranks; rank++)
      memcpy(static_cast<char*>(to) + rank * share + offset, c->chunk(rank), size);
  });
}
API Status ncclAllReduce(const void* from, void* to, size_t number, int type, int operation, Communicator* c, void*) {
  count("nccl", "ncclAllReduce");
  if (operation != 0 || (type != 2 && type != 4 && type != 7 && type != 8)) return 4;  // sums of int, float, double
  return exchange(c, from, number * size_of(type), [&](size_t offset, size_t size) {
    char* place = static_cast<char*>(to) + offset;
    type == 2   ? add_up<int32_t>(c, place, size)
    : type == 4 ? add_up<int64_t>(c, place, size)
    : type == 7 ? add_up<float>(c, place, size)
                : add_up<double>(c, place, size);
  });
}
