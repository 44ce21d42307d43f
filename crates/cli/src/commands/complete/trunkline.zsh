#compdef trunkline
# Completions of trunkline for zsh. The program itself says what may come next.
_trunkline() {
    local line value home
    local -a before final shown open shown_open
    before=("${(@Q)words[1,CURRENT-1]}")
    local current=${(Q)PREFIX}
    # What is completed behind ~/ is quoted, the tilde is not.
    if [[ $PREFIX == '~/'* ]]; then
        home='~/'
        compset -P '\~/'
    fi
    for line in "${(@f)$(trunkline complete zsh "${before[@]}" "$current" 2>/dev/null)}"; do
        [[ -n $line ]] || continue
        line=${line#$home}
        value=${line%%$'\t'*}
        # A host is followed by its path, a directory by what is in it, an option by its value.
        if [[ $value == *[/:=] ]]; then
            open+=("$value")
            shown_open+=("${line/$'\t'/  -- }")
        else
            final+=("$value")
            shown+=("${line/$'\t'/  -- }")
        fi
    done
    local -i result=1
    (( $#open )) && compadd -l -S '' -d shown_open -a open && result=0
    (( $#final )) && compadd -l -d shown -a final && result=0
    return result
}
if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then
    _trunkline "$@"
else
    compdef _trunkline trunkline
fi
