//! What `ssh -G` may print: any bytes are read, a line gives one directive at most, and a value never becomes another one.

use trunkline::config::fuzzing;

pub(crate) fn fuzz(bytes: &[u8]) {
    let directives = fuzzing::dump(bytes);
    let lines = bytes.split(|byte| *byte == b'\n').count();
    assert!(directives.len() <= lines);
    for directive in &directives {
        assert!(!directive.keyword.contains([' ', '\n']));
        assert!(!directive.value.contains('\n'));
        assert!(!directive.keyword.bytes().any(|byte| byte.is_ascii_uppercase()));
    }
    // What was read, printed as ssh prints it, is read as the same.
    let printed: String = directives
        .iter()
        .map(|directive| format!("{} {}\n", directive.keyword, directive.value))
        .collect();
    assert_eq!(fuzzing::dump(printed.as_bytes()), directives);
    // A host comes of it, or an error: never a panic.
    fuzzing::host(bytes);
    // As an option, it is refused wherever it would have been more than one line.
    if let Ok(()) = fuzzing::option(bytes) {
        assert!(!bytes.contains(&b'\n') && !bytes.contains(&b'\r') && !bytes.contains(&0));
    }
}
