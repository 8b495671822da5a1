# What `cmake --install` puts where, so that find_package(terrace) works from there.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/terrace)
install(TARGETS terrace EXPORT terraceTargets FILE_SET HEADERS)
install(EXPORT terraceTargets NAMESPACE terrace:: DESTINATION ${package_dir})
configure_package_config_file(cmake/terraceConfig.cmake.in terraceConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(terraceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/terraceConfig.cmake ${PROJECT_BINARY_DIR}/terraceConfigVersion.cmake
  DESTINATION ${package_dir})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
