# Run at every build: writes OUTPUT (a header) with the commit of SOURCE_DIR, and touches it only when that changed.
set(commit "unknown")
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} describe --always --dirty --exclude=* --abbrev=12
                  WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE described ERROR_QUIET RESULT_VARIABLE failed
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed EQUAL 0 AND EXISTS ${SOURCE_DIR}/.git)
    set(commit "${described}")
  endif()
endif()
set(text "#pragma once\n\ninline constexpr const char kBuiltCommit[] = \"${commit}\";\n")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${OUTPUT} "${text}")
endif()
