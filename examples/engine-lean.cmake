# Read by the engine's build behind its project() line, see engine-flags.sh. A normal variable hides
# the cache entry of the same name that llama-cpp-python forces to ON (CMake policies CMP0126, CMP0077).
set(LLAMA_BUILD_COMMON OFF)
