# Completions of trunkline for fish. The program itself says what may come next.
function __trunkline_complete
    trunkline complete fish (commandline -opc) (commandline -ct) 2>/dev/null
end
complete -c trunkline -f -a '(__trunkline_complete)'
