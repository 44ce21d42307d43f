# Completions of trunkline for bash. The program itself says what may come next.
_trunkline() {
    local line=${COMP_LINE:0:COMP_POINT}
    mapfile -t COMPREPLY < <(trunkline complete bash "$line" "$2" 2>/dev/null)
    # A host is followed by its path, a directory by what is in it, an option by its value.
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/:=] ]]; then
        compopt -o nospace
    fi
}
complete -F _trunkline trunkline
