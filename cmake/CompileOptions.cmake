# Options that every target of ours is compiled with: flashmla_options.
add_library(flashmla_options INTERFACE)
target_compile_features(flashmla_options INTERFACE cxx_std_20)
target_compile_options(flashmla_options INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Werror>)
if(FLASHMLA_SANITIZE)
  # -O1 and line numbers alone: instrumented code takes twice as long to compile with -O2 -g.
  target_compile_options(flashmla_options INTERFACE -fsanitize=${FLASHMLA_SANITIZE} -fno-sanitize-recover=all
                         -fno-omit-frame-pointer -O1 -g1 -Wno-maybe-uninitialized)  # GCC: instrumentation misleads that warning
  target_link_options(flashmla_options INTERFACE -fsanitize=${FLASHMLA_SANITIZE})
endif()
