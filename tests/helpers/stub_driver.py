"""A CUDA driver on which nothing happens, so that Triton's own launcher runs without a GPU."""

import ctypes
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

NAMES = "CtxSetCurrent CtxGetLimit CtxSetLimit DevicePrimaryCtxRetain DeviceGet FuncSetAttribute "
NAMES += "FuncSetCacheConfig GetErrorString"
SOURCE = r"""
typedef unsigned long long word;
word last[8];
int cuCtxGetCurrent(word *x){*x=1;return 0;}
int cuDeviceGetAttribute(int *x,int a,int d){*x=65536;return 0;}
int cuDriverGetVersion(int *x){*x=13000;return 0;}
int cuFuncGetAttribute(int *x,int a,word f){*x=1024;return 0;}
int cuModuleLoadData(word *x,void *code){*x=1;return 0;}
int cuModuleGetFunction(word *x,word m,char *name){*x=7;return 0;}
int cuPointerGetAttribute(word *x,int a,word p){*x=p;return 0;}
int cuPointerGetAttributes(unsigned n,int *a,word **x,word p){**x=p;return 0;}
int cuLaunchKernelEx(unsigned *c,word f,word **p,void *e){
  word x[]={last[0]+1,c[0],c[1],c[2],c[3],f,*p[0],*p[1]};
  for(int i=0;i<8;i++)last[i]=x[i];
  return 0;}
""" + "\n".join(f"int cu{name}(){{return 0;}}" for name in NAMES.split())


def install(folder):
    """Have Triton compile for an H100 and launch tensors of the CPU; at the start of a process.

    Args:
        folder: to write to.

    Returns:
        Numbers that each launch changes: how many there were; its grid, three of them; threads of a
        program; the function; the first two arguments.
    """
    source, library = Path(folder, "stub.c"), Path(folder, "libcuda.so.1")
    source.write_text(SOURCE, "utf-8")
    command = ["cc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", library, source]
    subprocess.run(command, check=True)
    Path(folder, "libcuda.so").symlink_to(library.name)
    os.environ.update(TRITON_LIBCUDA_PATH=str(folder), TRITON_CACHE_DIR=str(Path(folder, "cache")))
    stub = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia import driver as nvidia
    from triton.runtime import driver

    made = SimpleNamespace(
        utils=nvidia.CudaUtils(),
        launcher_cls=nvidia.CudaLauncher,
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
    driver.set_active(made)
    return (ctypes.c_uint64 * 8).in_dll(stub, "last")
