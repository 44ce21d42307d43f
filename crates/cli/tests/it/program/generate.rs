//! What is generated: completions, man pages, the page of settings.

use crate::home::{Home, assert_status, finish, text};

#[test]
fn completions_and_man_pages_know_every_command() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = finish(home.trunkline().args(["completions", shell]));
        assert_status(&output, 0);
        assert!(text(&output.stdout).contains("explain"), "{shell}");
    }
    let folder = home.path("man");
    assert_status(&finish(home.trunkline().arg("man").arg(&folder)), 0);
    for command in [
        "ssh", "run", "ls", "check", "close", "warm", "explain", "stop", "daemon",
    ] {
        assert!(
            folder.join(format!("trunkline-{command}.1")).exists(),
            "{command}"
        );
    }
    assert!(text(&finish(home.trunkline().arg("settings")).stdout).contains("idle_timeout"));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let home = Home::new();
    let mut command = home.command("bash");
    command.args([
        "-c",
        "\"$T\" completions bash | head -n 1 >/dev/null; exit ${PIPESTATUS[0]}",
    ]);
    assert_status(&finish(command.env("T", crate::home::program())), 0);
}
