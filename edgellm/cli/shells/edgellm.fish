# Completion of edgellm for fish.  edgellm completion fish > ~/.config/fish/completions/edgellm.fish

function __edgellm_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    set -l lines ($words[1] __complete words $words[2..-1] "$typed" 2>/dev/null)
    # The words are of the value alone where it stands behind `--option=`.
    set -l before (string match -r -- '^-[^=]*=' "$typed")
    switch (string split -m 1 \t -- "$lines[1]")[1]
        case model
            __fish_complete_suffix .gguf
        case file
            __fish_complete_path "$typed"
        case '*'
            test (count $lines) -gt 1; and printf "$before%s\n" $lines[2..-1]
    end
end

complete -c edgellm -f -k -a '(__edgellm_complete)'
