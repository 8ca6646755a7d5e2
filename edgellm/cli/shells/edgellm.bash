# Completion of edgellm for bash 4 and later.  eval "$(edgellm completion bash)"

# Take names of files from lines. What is not there is part of a name of two lines: readline has no
# way to type one. What looks like an option is given as a path.
_edgellm_names() {
    local line
    while IFS= read -r line; do
        [[ $line == \~* || -e $line || -L $line ]] || continue
        [[ $line == -* ]] && line=./$line
        COMPREPLY+=("$line")
    done
}

_edgellm() {
    local program=${COMP_WORDS[0]/#\~/$HOME} kind word line
    COMPREPLY=()
    {
        IFS=$'\t' read -r kind word || return
        while IFS= read -r line; do
            COMPREPLY+=("${line%%$'\t'*}")
        done
    } < <("$program" __complete line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    case $kind in
        model | file) compopt -o filenames 2>/dev/null ;;
    esac
    case $kind in
        model)
            # Models and folders; anything else only where there is neither.
            _edgellm_names < <(
                compgen -f -X '!*.[gG][gG][uU][fF]' -- "$word"
                compgen -d -- "$word"
            )
            ((${#COMPREPLY[@]})) || _edgellm_names < <(compgen -f -- "$word")
            ;;
        file) _edgellm_names < <(compgen -f -- "$word") ;;
    esac
    # readline replaces what follows the last colon only.
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}")
    fi
}

complete -o nosort -F _edgellm edgellm 2>/dev/null || complete -F _edgellm edgellm
