# CUDA is found or absent; the library without a GPU needs none of it.
set(FLASHMLA_CUDA AUTO CACHE STRING "CUDA back end: AUTO (built where the toolkit is found), ON, OFF")
set_property(CACHE FLASHMLA_CUDA PROPERTY STRINGS AUTO ON OFF)
# Compute capabilities with machine code of their own; every newer GPU runs the PTX of the first one.
set(FLASHMLA_CUDA_ARCHS "80;86;89;90a;100;120" CACHE STRING "GPU architectures that kernels are compiled for")
option(FLASHMLA_DEVICE_WATCHDOG "Kernels trap where a wait in shared memory does not end (Debug builds always do)" OFF)
option(FLASHMLA_DEVICE_JITTER "Kernels delay their warps at random, so that races show: for tests" OFF)

set(FLASHMLA_HAS_CUDA OFF)
set(FLASHMLA_CUDA_STATE "off (FLASHMLA_CUDA=OFF)")
if(FLASHMLA_CUDA)
  find_package(CUDAToolkit 12.8 QUIET)
  if(CUDAToolkit_FOUND AND NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  if(CUDAToolkit_FOUND)
    # Flags of our own below: CMake 3.25 knows neither every architecture nor "PTX of one of them".
    set(CMAKE_CUDA_ARCHITECTURES OFF)
    enable_language(CUDA)
    set(FLASHMLA_HAS_CUDA ON)
    list(JOIN FLASHMLA_CUDA_ARCHS ", " archs)
    set(FLASHMLA_CUDA_STATE "toolkit ${CUDAToolkit_VERSION}, code for ${archs}")
  elseif(FLASHMLA_CUDA STREQUAL "AUTO")
    set(FLASHMLA_CUDA_STATE "no toolkit of version 12.8 or newer found")
  else()
    message(FATAL_ERROR "FLASHMLA_CUDA=${FLASHMLA_CUDA}: no CUDA toolkit of version 12.8 or newer was found. Name it with "
      "-DCUDAToolkit_ROOT=DIR, or configure with FLASHMLA_CUDA=OFF (preset cpu) for the CPU back ends.")
  endif()
endif()

if(FLASHMLA_HAS_CUDA)
  add_library(flashmla_cuda_options INTERFACE)
  set(codes)
  foreach(arch ${FLASHMLA_CUDA_ARCHS})
    list(APPEND codes -gencode=arch=compute_${arch},code=sm_${arch})
  endforeach()
  list(GET FLASHMLA_CUDA_ARCHS 0 oldest)
  if(NOT oldest MATCHES "a$")
    list(APPEND codes -gencode=arch=compute_${oldest},code=compute_${oldest})
  endif()
  # A spill or a stack frame in a kernel is an error.
  target_compile_options(flashmla_cuda_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;${codes};--expt-relaxed-constexpr;-lineinfo;-Xptxas=--warn-on-spills,--warn-on-local-memory-usage,--warning-as-error;-Werror=all-warnings>)
  target_compile_definitions(flashmla_cuda_options INTERFACE
    $<$<OR:$<BOOL:${FLASHMLA_DEVICE_WATCHDOG}>,$<CONFIG:Debug>>:FLASHMLA_DEVICE_WATCHDOG>
    $<$<BOOL:${FLASHMLA_DEVICE_JITTER}>:FLASHMLA_DEVICE_JITTER>)
endif()
