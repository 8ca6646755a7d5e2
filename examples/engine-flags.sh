# Build flags for the engine (llama-cpp-python is compiled when it is installed). Source it:
#
#   . examples/engine-flags.sh && pip install '.[llama]'
#
# It builds the libraries edgellm uses and leaves out servers, tools and the chat helpers. Flags of
# your own win: with CMAKE_ARGS set nothing here changes it. For an accelerator, for example:
#
#   CMAKE_ARGS="-DGGML_CUDA=on" pip install '.[llama]'      NVIDIA, needs the CUDA toolkit
#   pip install '.[llama]'                                  Apple: Metal is on by itself

if [ -z "${CMAKE_ARGS:-}" ]; then
    engine_lean=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/engine-lean.cmake
    CMAKE_ARGS="-DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_SERVER=OFF"
    CMAKE_ARGS+=" -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_OPENSSL=OFF"
    case $engine_lean in
        *[[:space:]]*) ;; # CMAKE_ARGS is split at spaces: such a path cannot be named in it
        *) CMAKE_ARGS+=" -DCMAKE_PROJECT_llama_cpp_INCLUDE=$engine_lean" ;;
    esac
    # With AVX512-FP16 in the build, ggml's flash attention takes a scalar path for heads of 64:
    # everything else this CPU has, named one by one, is twice as fast with a long context.
    if grep -qsw avx512_fp16 /proc/cpuinfo; then
        CMAKE_ARGS+=" -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
        CMAKE_ARGS+=" -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON"
        CMAKE_ARGS+=" -DGGML_AVX512_BF16=ON"
    fi
    export CMAKE_ARGS
    unset engine_lean
fi
export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(getconf _NPROCESSORS_ONLN)}"
