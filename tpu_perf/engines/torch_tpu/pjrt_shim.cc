// A PJRT plugin that is another one, named by TPU_PERF_PJRT_PLUGIN, with one answer added: where
// the results of a program lie. The CPU plugin's wheel does not implement it; TorchTPU's compiled
// programs ask. On a CPU every result lies in "device".
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "pjrt_c_api.h"

static const PJRT_Api* real = nullptr;

static PJRT_Error* OutputMemoryKinds(PJRT_Executable_OutputMemoryKinds_Args* args) {
  PJRT_Executable_NumOutputs_Args count = {};
  count.struct_size = PJRT_Executable_NumOutputs_Args_STRUCT_SIZE;
  count.executable = args->executable;
  if (PJRT_Error* error = real->PJRT_Executable_NumOutputs(&count)) return error;
  // The caller copies the answer at once; it has to outlive only this call, on this thread.
  static thread_local std::vector<const char*> kinds;
  static thread_local std::vector<size_t> sizes;
  kinds.assign(count.num_outputs, "device");
  sizes.assign(count.num_outputs, sizeof("device") - 1);
  args->num_outputs = count.num_outputs;
  args->memory_kinds = kinds.data();
  args->memory_kind_sizes = sizes.data();
  return nullptr;
}

extern "C" const PJRT_Api* GetPjrtApi() {
  static PJRT_Api api = [] {
    const char* path = getenv("TPU_PERF_PJRT_PLUGIN");
    void* library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    auto get = library ? reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"))
                       : nullptr;
    if (!get) {
      fprintf(stderr, "tpu_perf: no PJRT plugin at TPU_PERF_PJRT_PLUGIN=%s\n", path ? path : "");
      abort();
    }
    real = get();
    PJRT_Api copy = *real;  // the header is that of the plugin's own wheel
    copy.PJRT_Executable_OutputMemoryKinds = OutputMemoryKinds;
    return copy;
  }();
  return &api;
}
