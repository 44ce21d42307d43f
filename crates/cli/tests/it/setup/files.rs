//! The effects of `trunkline setup` on the files of others.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::stanza::Stanza;
use crate::home::{
    Home, assert_has, assert_prints, assert_says, assert_status, describe, fail, finish, program, succeed,
    text, with_status,
};

#[test]
fn lines_are_written_once_and_taken_out_without_a_trace() {
    for before in [
        "",
        "Host a\n    User b\n",
        "Host a\n    User b",
        "# only a note\n\n",
    ] {
        let stanza = Stanza::behind_text(before);
        let with = fs::read_to_string(stanza.config()).unwrap();
        assert!(with.starts_with(before) && with.contains("Include "), "{with}");
        assert!(!with.contains("Match"), "what not all programs know: {with}");
        let included = stanza.included_file();
        assert!(fs::read_to_string(&included).unwrap().contains("Match exec"));
        assert_status(&stanza.setup(&[]), 0);
        assert_eq!(fs::read_to_string(stanza.config()).unwrap(), with);
        let copy = stanza.home.path("config.before-trunkline");
        assert_eq!(fs::read_to_string(&copy).unwrap(), before);
        assert_status(&stanza.setup(&["--undo"]), 0);
        assert_eq!(fs::read_to_string(stanza.config()).unwrap(), before);
        assert!(!copy.exists() && !included.exists());
        assert_status(&stanza.setup(&["--undo"]), 0);
    }
}

#[test]
fn a_comment_in_an_old_encoding_stays_as_it_is() {
    let stanza = Stanza { home: Home::new() };
    assert_status(&stanza.setup(&[]), 0);
    assert_status(&stanza.setup(&["--undo"]), 0);
    let before = b"# B\xfcro, and \xc3\xa4\nHost a\n    User b\n";
    fs::write(stanza.config(), before).unwrap();
    assert_status(&stanza.setup(&["--print"]), 0);
    assert_status(&stanza.setup(&[]), 0);
    let with = fs::read(stanza.config()).unwrap();
    assert!(with.starts_with(before) && with.len() > before.len());
    assert_status(&stanza.setup(&["--undo"]), 0);
    assert_eq!(fs::read(stanza.config()).unwrap(), before);
    assert!(!stanza.home.path("config.before-trunkline").exists());
}

#[test]
fn a_file_that_was_not_there_is_gone_again() {
    let stanza = Stanza { home: Home::new() };
    assert_status(&stanza.setup(&["--print"]), 0);
    assert!(!stanza.config().exists());
    assert_status(&stanza.setup(&[]), 0);
    let mode = fs::metadata(stanza.config()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_status(&stanza.setup(&["--undo"]), 0);
    assert!(!stanza.config().exists());
    assert!(!stanza.included_file().exists());
}

#[test]
fn a_shell_that_cannot_be_run_is_told_of() {
    for (shell, usable) in [
        ("/bin/sh", true),
        ("", false),
        ("sh", false),
        ("/no/such/shell", false),
    ] {
        let home = Home::new();
        let mut command = home.trunkline();
        command.args(["setup", "ssh", "--file"]).arg(home.path("config"));
        // `ssh -G` is stopped by it, too, once it reads the lines.
        let told = finish(command.env("SHELL", shell));
        let said = text(&told.stderr);
        assert_eq!(said.contains("SHELL"), !usable, "{shell:?}: {said}");
    }
}

#[test]
fn lines_that_came_later_keep_their_meaning() {
    let stanza = Stanza::behind_text("Host a\n    User b\n");
    let with = fs::read_to_string(stanza.config()).unwrap();
    fs::write(stanza.config(), format!("{with}ConnectTimeout 7\n")).unwrap();
    let resolved = || text(&stanza.run(&["-G", "other"]).stdout);
    let timeout = || resolved().contains("connecttimeout 7\n");
    assert!(timeout());
    // Once more: the lines go to the end.
    let again = with_status(0, stanza.setup(&[]));
    let said = text(&again.stdout);
    assert!(said.starts_with("changed trunkline's lines in "), "{said}");
    let with = fs::read_to_string(stanza.config()).unwrap();
    assert!(with.find("Include ") > with.find("ConnectTimeout"), "{with}");
    assert!(timeout());
    assert_status(&stanza.setup(&["--undo"]), 0);
    assert!(timeout());
}

#[test]
fn what_cannot_be_done_is_refused_in_a_sentence_and_changes_nothing() {
    let stanza = Stanza::behind_text("User x\n");
    let whole = fs::read_to_string(stanza.config()).unwrap();
    let broken = whole.replace("# <<< trunkline setup ssh <<<\n", "");
    fs::write(stanza.config(), &broken).unwrap();
    for option in [&[][..], &["--undo"]] {
        let output = with_status(255, stanza.setup(option));
        assert_eq!(text(&output.stderr).lines().count(), 1, "{}", describe(&output));
        assert_eq!(fs::read_to_string(stanza.config()).unwrap(), broken);
    }
    fs::remove_file(stanza.config()).unwrap();
    fs::create_dir(stanza.config()).unwrap();
    assert_status(&stanza.setup(&[]), 255);
}

#[test]
fn a_symlink_stays_one() {
    let stanza = Stanza { home: Home::new() };
    let real = stanza.home.path("real");
    fs::write(&real, "User x\n").unwrap();
    symlink(&real, stanza.config()).unwrap();
    assert_status(&stanza.setup(&[]), 0);
    assert!(fs::symlink_metadata(stanza.config()).unwrap().is_symlink());
    assert!(fs::read_to_string(&real).unwrap().contains("Include "));
}

#[test]
fn the_user_is_told_when_something_of_their_own_wins() {
    let stanza = Stanza::behind_text("Host *\nControlPath /x/%C\n");
    assert_status(&stanza.setup(&["--undo"]), 0);
    let told = stanza.setup(&[]);
    assert_prints(&told, "your ControlPath /x/");
    let stanza = Stanza { home: Home::new() };
    fs::write(stanza.config(), "Nonsense yes\n").unwrap();
    let told = with_status(255, stanza.setup(&[]));
    assert_says(&told, "nonsense");
    assert_eq!(fs::read_to_string(stanza.config()).unwrap(), "Nonsense yes\n");
}

#[test]
fn git_is_told_once_and_can_be_told_otherwise() {
    let home = Home::new();
    let setup = |options: &[&str]| finish(home.trunkline().args(["setup", "git"]).args(options));
    let value = || {
        let mut get = home.command("git");
        get.args(["config", "--global", "--get", "core.sshCommand"]);
        text(&finish(&mut get).stdout)
    };
    assert_status(&setup(&["--print"]), 0);
    assert_eq!(value(), "");
    for _ in 0..2 {
        assert_status(&setup(&[]), 0);
        assert_eq!(value(), format!("{} ssh\n", program()));
    }
    assert_status(&setup(&["--undo"]), 0);
    assert_eq!(value(), "");
    let mut own = home.command("git");
    own.args(["config", "--global", "core.sshCommand", "ssh -v"]);
    succeed(&mut own);
    for option in [&[][..], &["--undo"]] {
        assert_status(&setup(option), 255);
        assert_eq!(value(), "ssh -v\n");
    }
}

/// The user's settings, in whatever file, are neither overridden nor lost.
#[test]
fn git_s_settings_of_the_users_own_stay() {
    let home = Home::new();
    let setup = |options: &[&str]| finish(home.trunkline().args(["setup", "git"]).args(options));
    let git = |arguments: &[&str]| {
        let mut git = home.command("git");
        text(&finish(git.args(["config", "--global"]).args(arguments)).stdout)
    };
    let config = home.path("home").join(".gitconfig");
    let included = home.path("home").join("work.gitconfig");
    let include = format!("[include]\n\tpath = {}\n", included.display());
    for (own, other) in [
        ("[ssh]\n\tvariant = simple\n", ""),
        (&*include, "[core]\n\tsshCommand = ssh -v\n"),
        ("[core]\n\tsshCommand = ssh -v\n\tsshCommand = ssh -vv\n", ""),
    ] {
        fs::write(&config, own).unwrap();
        fs::write(&included, other).unwrap();
        let refused = with_status(255, setup(&[]));
        assert_says(&refused, "is already set to \"s");
        setup(&["--undo"]);
        assert_eq!(fs::read_to_string(&config).unwrap(), own);
    }
    // Several of ours are all taken away, and nothing else is.
    let mine = format!("{} ssh", program());
    fs::write(&config, "").unwrap();
    assert_status(&setup(&[]), 0);
    git(&["--add", "core.sshCommand", &mine]);
    git(&["--add", "ssh.variant", "simple"]);
    assert_status(&setup(&["--undo"]), 0);
    assert_eq!(git(&["--get-all", "core.sshCommand"]), "");
    assert_eq!(git(&["--get-all", "ssh.variant"]), "simple\n");
    // What cannot be taken away is not said to be gone.
    fs::write(&config, &include).unwrap();
    fs::write(&included, format!("[core]\n\tsshCommand = {mine}\n")).unwrap();
    let left = with_status(255, setup(&["--undo"]));
    assert_says(&left, "includes");
}

#[test]
fn rsync_is_told_by_the_profile_of_the_users_shell() {
    for (shell, profile, line) in [
        ("/bin/bash", ".profile", "export RSYNC_RSH=\""),
        ("/usr/bin/zsh", ".zprofile", "export RSYNC_RSH=\""),
        (
            "/usr/bin/fish",
            ".config/fish/conf.d/trunkline.fish",
            "set -gx RSYNC_RSH \"",
        ),
    ] {
        let home = Home::new();
        let setup = |options: &[&str]| {
            let mut command = home.trunkline();
            command.env("SHELL", shell).env_remove("ZDOTDIR");
            command.env_remove("XDG_CONFIG_HOME");
            finish(command.args(["setup", "rsync"]).args(options))
        };
        let profile = home.path("home").join(profile);
        let told = with_status(0, setup(&[]));
        assert_prints(&told, profile.to_str().unwrap());
        let written = fs::read_to_string(&profile).unwrap();
        assert_has(&written, &format!("{line}{} ssh\"\n", program()));
        let undone = with_status(0, setup(&["--undo"]));
        let said = text(&undone.stdout);
        assert!(
            said.contains("keep RSYNC_RSH") && !said.contains("will use it"),
            "{said}"
        );
        assert!(!profile.exists());
    }
}

#[test]
fn a_shell_that_is_not_known_is_given_no_file_that_it_does_not_read() {
    let home = Home::new();
    let mut command = home.trunkline();
    let refused = fail(255, command.env("SHELL", "/bin/tcsh").args(["setup", "rsync"]));
    assert_says(&refused, &format!("setenv RSYNC_RSH \"{} ssh\"", program()));
    assert!(!home.path("home").join(".profile").exists());
}

#[test]
fn ansible_keeps_its_comments_and_its_order() {
    let home = Home::new();
    let file = home.path("ansible.cfg");
    let before = "; mine\n[defaults]\nforks = 20\n\n[ssh_connection]\npipelining = true\n";
    fs::write(&file, before).unwrap();
    let link = home.path("ssh-trunkline");
    let setup = |options: &[&str]| {
        let mut command = home.trunkline();
        command.args(["setup", "ansible", "--file"]).arg(&file);
        finish(command.args(options))
    };
    for options in [&[][..], &["--drop-in", link.to_str().unwrap()]] {
        assert_status(&setup(options), 0);
        let with = fs::read_to_string(&file).unwrap();
        let wanted = if options.is_empty() {
            "ssh_args = -o ControlMaster=no\n".to_owned()
        } else {
            format!("ssh_executable = {}\n", link.display())
        };
        assert!(with.contains(&wanted), "{with}");
        assert_status(&setup(options), 0);
        assert_eq!(fs::read_to_string(&file).unwrap(), with);
        assert_status(&setup(&[options, &["--undo"]].concat()), 0);
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
        assert!(!link.exists());
    }
    // The link need not be named to be taken away: the lines name it.
    let options = ["--drop-in", link.to_str().unwrap()];
    assert_status(&setup(&options), 0);
    assert_status(&setup(&["--undo"]), 0);
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    assert!(!link.exists());
    // Lines that cannot be taken away name a link, which stays.
    let undo = ["--drop-in", link.to_str().unwrap(), "--undo"];
    assert_status(&setup(&options), 0);
    let with = fs::read_to_string(&file).unwrap();
    fs::write(&file, with.replace("# <<<", "#")).unwrap();
    assert_status(&setup(&undo), 255);
    assert!(link.exists());
    // Somebody else's is left alone.
    fs::write(&file, &with).unwrap();
    fs::remove_file(&link).unwrap();
    symlink("/elsewhere/trunkline", &link).unwrap();
    let output = with_status(0, setup(&undo));
    let wanted = format!("left {}, which leads to /elsewhere/trunkline\n", link.display());
    assert!(text(&output.stdout).ends_with(&wanted), "{}", describe(&output));
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    let output = with_status(255, setup(&options));
    let wanted = "is already a link, to /elsewhere/trunkline: delete it first, or choose another name\n";
    assert!(text(&output.stderr).ends_with(wanted), "{}", describe(&output));
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
}

/// The file that is changed is the one that Ansible reads, and Ansible understands what comes of it.
#[test]
fn ansible_reads_the_file_that_was_set_up() {
    let home = Home::new();
    let directories = ["own", "shared", "named"].map(|name| home.path(name));
    for directory in &directories {
        fs::create_dir(directory).unwrap();
        fs::write(
            directory.join("ansible.cfg"),
            "[ssh_connection]  ; comment\npipelining = true\n",
        )
        .unwrap();
    }
    let [own, shared, named] = &directories;
    fs::set_permissions(shared, fs::Permissions::from_mode(0o777)).unwrap();
    let none = home.path("none");
    for (cwd, variable, wanted) in [
        (own, None, own.join("ansible.cfg")),
        (shared, None, home.path("home").join(".ansible.cfg")),
        (shared, Some(named), named.join("ansible.cfg")),
        (own, Some(&none), own.join("ansible.cfg")),
    ] {
        let command = |program: &str| {
            let mut command = home.command_with_ansible(program);
            command.current_dir(cwd).env_remove("ANSIBLE_CONFIG");
            command.envs(variable.map(|value| ("ANSIBLE_CONFIG", value)));
            command
        };
        succeed(command(program()).args(["setup", "ansible"]));
        let file = fs::read_to_string(&wanted).unwrap();
        assert!(file.contains("ssh_args = -o ControlMaster=no\n"), "{file}");
        let seen = succeed(
            command("ansible")
                .args(["localhost", "-m", "debug", "-a"])
                .arg("msg={{ lookup('config', 'ssh_args', plugin_type='connection', plugin_name='ssh') }}"),
        );
        assert_prints(&seen, "\"-o ControlMaster=no\"");
        succeed(command(program()).args(["setup", "ansible", "--undo"]));
    }
}

#[test]
fn under_a_name_that_begins_with_ssh_the_program_takes_its_arguments() {
    let server = crate::home::server();
    let home = Home::new();
    let link = home.path("ssh-trunkline");
    symlink(program(), &link).unwrap();
    let mut ssh = home.command(&link);
    ssh.arg("-F")
        .arg(server.ssh_config())
        .args([server.alias(), "echo one"]);
    let output = succeed(&mut ssh);
    assert_eq!(text(&output.stdout), "one\n");
    assert!(home.daemon().is_some());
}
