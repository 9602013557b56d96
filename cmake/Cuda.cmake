# CUDA is found or absent; the library without a GPU needs none of it. There are no CUDA kernels in this version.
set(FLASHMLA_CUDA AUTO CACHE STRING "CUDA back end: AUTO (built where the toolkit is found), ON, OFF")
set_property(CACHE FLASHMLA_CUDA PROPERTY STRINGS AUTO ON OFF)

set(FLASHMLA_CUDA_STATE "off (FLASHMLA_CUDA=OFF)")
if(FLASHMLA_CUDA STREQUAL "AUTO")
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND)
    set(FLASHMLA_CUDA_STATE "toolkit ${CUDAToolkit_VERSION} found, not used: this version has no CUDA back end")
  else()
    set(FLASHMLA_CUDA_STATE "no toolkit found; this version has no CUDA back end")
  endif()
elseif(FLASHMLA_CUDA)
  message(FATAL_ERROR "FLASHMLA_CUDA=${FLASHMLA_CUDA}: flashmla ${PROJECT_VERSION} has no CUDA kernels yet, so there is no "
    "CUDA back end to build. Configure with FLASHMLA_CUDA=OFF or AUTO (preset cpu) for the CPU back ends.")
endif()
