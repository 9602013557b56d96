# Install rules: components "runtime" (the library, the program) and "development" (headers, CMake package, pkg-config).
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/flashmla)

if(TARGET flashmla_cli)
  file(RELATIVE_PATH bin_to_lib /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(flashmla_cli PROPERTIES INSTALL_RPATH "\$ORIGIN/${bin_to_lib}")
  install(TARGETS flashmla_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
endif()
install(TARGETS flashmla EXPORT flashmla-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(DIRECTORY include/flashmla DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
  FILES_MATCHING PATTERN *.h)
install(EXPORT flashmla-targets NAMESPACE flashmla:: DESTINATION ${package_dir} COMPONENT development)

configure_package_config_file(cmake/flashmla-config.cmake.in ${PROJECT_BINARY_DIR}/flashmla-config.cmake
  INSTALL_DESTINATION ${package_dir})
if(PROJECT_VERSION_MAJOR EQUAL 0)  # before 1.0, minor versions may differ in the interface (CONTRIBUTING.md, "Versions")
  set(compatibility SameMinorVersion)
else()
  set(compatibility SameMajorVersion)
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/flashmla-config-version.cmake COMPATIBILITY ${compatibility})
install(FILES ${PROJECT_BINARY_DIR}/flashmla-config.cmake ${PROJECT_BINARY_DIR}/flashmla-config-version.cmake
  DESTINATION ${package_dir} COMPONENT development)

# The .pc file finds its prefix from where it lies, so that an installed tree can be moved.
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} OR IS_ABSOLUTE ${CMAKE_INSTALL_INCLUDEDIR})
  set(pc_prefix ${CMAKE_INSTALL_PREFIX})
  set(pc_libdir ${CMAKE_INSTALL_FULL_LIBDIR})
  set(pc_includedir ${CMAKE_INSTALL_FULL_INCLUDEDIR})
else()
  file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" up ${up})
  set(pc_prefix "\${pcfiledir}/${up}")
  set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
  set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
if(NOT BUILD_SHARED_LIBS)
  set(pc_static_cflags " -DFLASHMLA_STATIC")
  set(pc_static_libs " -lstdc++ -lm -pthread")
endif()
configure_file(cmake/flashmla.pc.in ${PROJECT_BINARY_DIR}/flashmla.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/flashmla.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
