# What was configured, in one block. FLASHMLA_CPU_ISAS is set where the sources of back end "cpu" are listed.
if(FLASHMLA_SANITIZE)
  set(sanitizer ", sanitizer ${FLASHMLA_SANITIZE}")
endif()
if(BUILD_SHARED_LIBS)
  set(library_kind shared)
else()
  set(library_kind static)
endif()
get_property(isas GLOBAL PROPERTY FLASHMLA_CPU_ISAS)
list(JOIN isas ", " isas)
message(STATUS "flashmla ${PROJECT_VERSION}
   library    ${library_kind}, ${CMAKE_BUILD_TYPE}${sanitizer}
   compiler   ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}
   CPU ISAs   ${isas}
   CUDA       ${FLASHMLA_CUDA_STATE}
   program ${FLASHMLA_BUILD_CLI}, runner ${FLASHMLA_BUILD_RUNNER}, tests ${FLASHMLA_BUILD_TESTS}, Python module ${FLASHMLA_BUILD_PYTHON}")
