use std::fs;

use proptest::prelude::*;

use super::*;

/// A directory with a configuration file, and an environment with it as the working directory.
struct Place {
    directory: tempfile::TempDir,
    world: World,
}

impl Place {
    fn new(config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let env = [
            ("PATH", "/usr/bin:/bin"),
            ("SSH_AUTH_SOCK", "/agent"),
            ("SHELL", "/bin/sh"),
        ];
        let env = env
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let place = Self {
            world: World::new(directory.path(), 0o22, env),
            directory,
        };
        place.write("config", config);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn request(&self, destination: &str) -> Request {
        let mut request = Request::new(destination.parse().unwrap(), Arc::new(self.world.clone()));
        request.ssh_args = vec!["-F".into(), self.path("config").into()];
        request
    }

    /// Installs a program that counts its runs and then is ssh.
    fn count_runs(&mut self) {
        let runs = self.path("runs");
        // The query for the program's defaults comes once in a resolver's life and is not counted.
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in *'-F none'*) ;; *) echo >>{} ;; esac\nexec /usr/bin/ssh \"$@\"\n",
            runs.display()
        );
        self.write("ssh", &script);
        fs::set_permissions(self.path("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
        self.world
            .env
            .insert("TRUNKLINE_SSH".into(), self.path("ssh").into());
    }

    fn runs(&self) -> usize {
        fs::read(self.path("runs")).map_or(0, |bytes| bytes.len())
    }
}

#[tokio::test]
async fn an_answer_is_what_ssh_says() {
    let place = Place::new("Host db\n HostName db.example\n User deploy\n Port 2200\n IdentityFile key\n");
    let config = Resolver::new().resolve(&place.request("db")).await.unwrap();
    assert_eq!(
        (config.user.as_str(), config.hostname.as_str(), config.port),
        ("deploy", "db.example", 2200)
    );
    assert_eq!(config.original_host, "db");
    assert!(config.host_key_order_is_free);
    assert_eq!(config.identity_files[0].path, place.path("key"));
    let config = Resolver::new()
        .resolve(&place.request("ssh://me@db:99"))
        .await
        .unwrap();
    assert_eq!((config.user.as_str(), config.port), ("me", 99));
}

#[tokio::test]
async fn ssh_is_asked_once_until_something_changes() {
    let mut place = Place::new("Include more\nHost db\n User one\n");
    place.count_runs();
    let resolver = Resolver::new();
    assert!(resolver.find_cached(&place.request("db"), |_| false).is_none());
    for _ in 0..3 {
        assert_eq!(resolver.resolve(&place.request("db")).await.unwrap().user, "one");
    }
    assert_eq!(place.runs(), 1);
    assert!(resolver.find_cached(&place.request("db"), |_| false).is_some());
    place.write("config", "Include more\nHost db\n User two\n");
    assert!(resolver.find_cached(&place.request("db"), |_| false).is_none());
    assert_eq!(resolver.resolve(&place.request("db")).await.unwrap().user, "two");
    assert_eq!(place.runs(), 2);
}

#[tokio::test]
async fn only_what_takes_part_in_an_answer_asks_again() {
    let mut place = Place::new("Host db\n IdentityFile /k-${TAKES_PART}\n");
    place.count_runs();
    place.world.env.insert("TAKES_PART".into(), "1".into());
    let resolver = Resolver::new();
    resolver.resolve(&place.request("db")).await.unwrap();
    place.world.env.insert("UNRELATED".into(), "1".into());
    place.world.cwd = "/".into();
    resolver.resolve(&place.request("db")).await.unwrap();
    assert_eq!(place.runs(), 1);
    place.world.env.insert("TAKES_PART".into(), "2".into());
    let config = resolver.resolve(&place.request("db")).await.unwrap();
    assert_eq!(config.identity_files[0].path, Path::new("/k-2"));
    place.world.env.insert("SSH_AUTH_SOCK".into(), "/other".into());
    let config = resolver.resolve(&place.request("db")).await.unwrap();
    assert_eq!(config.identity_agent.as_deref(), Some(Path::new("/other")));
    assert_eq!(place.runs(), 3);
}

#[tokio::test]
async fn a_relative_path_binds_an_answer_to_its_directory() {
    let mut place = Place::new("Host db\n IdentityFile key\n");
    let resolver = Resolver::new();
    resolver.resolve(&place.request("db")).await.unwrap();
    place.world.cwd = "/".into();
    let config = resolver.resolve(&place.request("db")).await.unwrap();
    assert_eq!(config.identity_files[0].path, Path::new("/key"));
}

#[tokio::test]
async fn callers_at_the_same_time_share_one_run() {
    let mut place = Place::new("Host db\n User one\n");
    place.count_runs();
    let resolver = Resolver::new();
    let request = place.request("db");
    let all = async {
        tokio::join!(
            resolver.resolve(&request),
            resolver.resolve(&request),
            resolver.resolve(&request)
        )
    };
    let (a, b, c) = all.await;
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    assert_eq!(place.runs(), 1);
    assert!(lock(&resolver.flights).is_empty());
}

#[tokio::test]
async fn a_caller_who_gives_up_leaves_nothing_behind() {
    let place = Place::new("");
    let pid = place.path("pid");
    place.write(
        "config",
        &format!("Match exec \"echo $$ >{}; sleep 1000\"\n User x\n", pid.display()),
    );
    let resolver = Resolver::new();
    let request = place.request("db");
    let resolving = resolver.resolve(&request);
    tokio::select! {
        _ = resolving => panic!("the command hangs"),
        () = async {
            // The shell has written its number once the file ends in a newline.
            while !fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')) {
                tokio::task::yield_now().await;
            }
        } => {}
    }
    assert!(lock(&resolver.flights).is_empty());
    wait_until_gone(&pid).await;
}

#[tokio::test]
async fn a_foreign_match_exec_is_believed_only_in_the_same_world() {
    let mut place = Place::new("Match exec \"test x$FLAG != x\"\n User flagged\nHost *\n User plain\n");
    let resolver = Resolver::new();
    assert_eq!(
        resolver.resolve(&place.request("db")).await.unwrap().user,
        "plain"
    );
    assert!(resolver.find_cached(&place.request("db"), |_| false).is_some());
    place.world.env.insert("FLAG".into(), "1".into());
    assert!(resolver.find_cached(&place.request("db"), |_| false).is_none());
    assert_eq!(
        resolver.resolve(&place.request("db")).await.unwrap().user,
        "flagged"
    );
}

#[tokio::test]
async fn who_connects_later_has_a_match_exec_run_anew() {
    let place = Place::new("");
    let config = format!("Match exec \"echo >>{}\"\n User x\n", place.path("ran").display());
    place.write("config", &config);
    let resolver = Resolver::new();
    let ran = || fs::read_to_string(place.path("ran")).unwrap().lines().count();
    let request = place.request("db");
    resolver.resolve(&request).await.unwrap();
    assert!(resolver.find_cached(&request, |_| true).is_some());
    for variant in lock(&resolver.cache).get_mut(&request.question()).unwrap() {
        let variant = Arc::get_mut(variant).unwrap();
        variant.volatile.as_mut().unwrap().1 -= AGED_AFTER;
    }
    assert!(resolver.find_cached(&request, |_| false).is_some());
    assert!(resolver.find_cached(&request, |_| true).is_none());
    assert_eq!(ran(), 1);
    resolver.resolve(&request).await.unwrap();
    assert_eq!(ran(), 2);
}

#[tokio::test]
async fn a_command_run_by_match_exec_sees_that_it_is_asked_by_the_engine() {
    let place = Place::new("Match exec \"test x$TRUNKLINE_RESOLVING != x\"\n User engine\n");
    assert_eq!(
        Resolver::new().resolve(&place.request("db")).await.unwrap().user,
        "engine"
    );
}

#[tokio::test]
async fn a_configuration_that_wants_a_command_resolves_without_one() {
    let place = Place::new("Host sub\n SessionType subsystem\nHost fork\n ForkAfterAuthentication yes\n");
    let resolver = Resolver::new();
    let config = resolver.resolve(&place.request("sub")).await.unwrap();
    assert_eq!(config.session_type, crate::ssh_config::SessionType::Subsystem);
    assert!(
        resolver
            .resolve(&place.request("fork"))
            .await
            .unwrap()
            .fork_after_authentication
    );
}

#[tokio::test]
async fn a_bad_option_is_named_with_its_file_and_line() {
    let place = Place::new("Host db\n Frobnicate yes\n");
    let error = Resolver::new()
        .resolve(&place.request("db"))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("config: line 2: Bad configuration option: frobnicate"),
        "{error}"
    );
    assert!(!error.contains("Pseudo-terminal"), "{error}");
}

#[tokio::test]
async fn a_hanging_match_exec_is_killed_with_its_children() {
    let place = Place::new("");
    let config = format!(
        "Match exec \"echo $$ >{}; sleep 1000 & wait\"\n User x\n",
        place.path("pid").display()
    );
    place.write("config", &config);
    let resolver = Resolver::new().with_time_limit(Duration::from_millis(700));
    let error = resolver.resolve(&place.request("db")).await.unwrap_err();
    assert!(matches!(error, ConfigError::TimedOut(_)), "{error}");
    wait_until_gone(&place.path("pid")).await;
}

/// Waits until the process whose number is in the file has ended; an unreaped zombie has.
async fn wait_until_gone(pid_file: &Path) {
    let pid = fs::read_to_string(pid_file).unwrap();
    loop {
        let state = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        if state.is_empty() || state.contains(") Z ") {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_child_that_outlives_match_exec_does_not_hold_the_answer() {
    let place = Place::new("");
    let pid = place.path("pid");
    place.write(
        "config",
        &format!(
            "Match exec \"sleep 1000 & echo $! >{}\"\n User x\n",
            pid.display()
        ),
    );
    assert_eq!(
        Resolver::new().resolve(&place.request("db")).await.unwrap().user,
        "x"
    );
    let pid: i32 = fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it still runs");
}

#[tokio::test]
async fn the_connection_hash_in_a_key_path_is_the_one_of_ssh() {
    let place = Place::new("Host db\n ControlPath /%C\n IdentityFile /%C\n User u\n");
    let config = Resolver::new().resolve(&place.request("db")).await.unwrap();
    assert_eq!(config.control_path.as_ref(), Some(&config.identity_files[0].path));
    assert_eq!(config.local_forwards, []);
    // If ssh cannot be asked, our own computation agrees with the installed version's.
    let place = Place::new("Host db\n ControlPath /%C\n IdentityFile /%C\n ClearAllForwardings yes\n");
    let config = Resolver::new().resolve(&place.request("db")).await.unwrap();
    assert_eq!(config.control_path.as_ref(), Some(&config.identity_files[0].path));
}

#[tokio::test]
async fn jump_hosts_are_resolved_from_the_same_file() {
    let place = Place::new("Host db\n ProxyJump me@one:23,two\nHost two\n User second\n");
    let resolver = Resolver::new();
    let request = place.request("db");
    let config = resolver.resolve(&request).await.unwrap();
    let jump = request.for_jump(config.jump_hosts()).unwrap();
    let second = resolver.resolve(&jump).await.unwrap();
    assert_eq!(
        (second.user.as_str(), second.hostname.as_str()),
        ("second", "two")
    );
    let first = resolver
        .resolve(&jump.for_jump(second.jump_hosts()).unwrap())
        .await
        .unwrap();
    assert_eq!(
        (first.user.as_str(), first.hostname.as_str(), first.port),
        ("me", "one", 23)
    );
    assert_eq!(first.proxy, Proxy::Direct);
}

#[tokio::test]
async fn what_ssh_remarks_on_is_told_and_looked_at_again() {
    let place = Place::new("Host db\n");
    let resolver = Resolver::new();
    let mut request = place.request("db");
    let key = request.world.absolute("later".as_ref());
    request.ssh_args = vec!["-i".into(), key.clone().into()];
    let before = resolver.resolve(&request).await.unwrap();
    assert_eq!(before.remarks.len(), 1, "{:?}", before.remarks);
    assert!(before.remarks[0].contains("later not accessible"));
    std::fs::write(&key, "").unwrap();
    let after = resolver.resolve(&request).await.unwrap();
    assert!(after.remarks.is_empty());
    assert!(after.identity_files.iter().any(|file| file.path == key));
    assert_eq!(resolver.find_cached(&request, |_| false), Some(after));
}

/// Returns the sharing keys of a destination for two callers with different values of BOX.
async fn keys_of_two(config: &str, destination: &str) -> [super::super::SharingKey; 2] {
    let mut place = Place::new(config);
    let resolver = Resolver::new();
    let mut keys = Vec::new();
    for value in ["1", "2"] {
        place.world.env.insert("BOX".into(), value.into());
        let request = place.request(destination);
        let resolved = resolver.resolve(&request).await.unwrap();
        assert_eq!(resolver.find_cached(&request, |_| false), Some(resolved.clone()));
        keys.push(resolved.sharing_key());
    }
    [keys[0], keys[1]]
}

#[tokio::test]
async fn where_a_command_takes_part_callers_with_other_environments_do_not_share() {
    let exec = |under: &str| format!("Host db\n HostName 127.0.0.1\n{under}");
    let file = Place::new("Match exec \"connect-box\"\n User x\n");
    let included = format!("Include {}\n", file.path("config").display());
    for (config, shares) in [
        (exec(""), true),
        (exec(" ProxyCommand nc $BOX 22\n"), false),
        (exec(" ProxyCommand a-script\n"), false),
        (exec(" KnownHostsCommand /bin/keys\n"), false),
        // It may have opened the tunnel that the address leads to.
        (exec("Match host db exec \"true\"\n User x\n"), false),
        (exec(&included), false),
        (
            exec(" ProxyJump jump\nHost jump\n ProxyCommand a-script\n"),
            false,
        ),
        (
            exec(" ProxyJump a,b\nHost a\n ProxyCommand a-script\nHost b\n User x\n"),
            false,
        ),
        (exec(" ProxyJump jump\n"), true),
        (exec("Match exec \"trunkline up\"\n User x\n"), true),
    ] {
        let [one, other] = keys_of_two(&config, "db").await;
        assert_eq!(one == other, shares, "{config}");
    }
}

#[tokio::test]
async fn a_jump_host_is_what_it_resolves_to() {
    let config = "Host db\n ProxyJump jump\nMatch host jump exec \"test $BOX = 1\"\n HostName one\nHost jump\n HostName two\n";
    let [one, other] = keys_of_two(config, "db").await;
    assert_ne!(one, other);
    let mut place = Place::new(config);
    place.world.env.insert("BOX".into(), "1".into());
    let resolved = Resolver::new().resolve(&place.request("db")).await.unwrap();
    assert_eq!(resolved.jump.as_ref().unwrap().hostname, "one");
}

#[tokio::test]
async fn jump_hosts_that_lead_in_a_circle_are_an_error() {
    let place = Place::new("Host a\n ProxyJump b\nHost b\n ProxyJump a\n");
    let error = Resolver::new().resolve(&place.request("a")).await.unwrap_err();
    assert_eq!(error, ConfigError::TooManyJumps(MOST_JUMPS));
}

#[test]
fn the_file_of_dash_f_is_found_in_any_spelling() {
    let find = |args: &[&str]| config_file(&args.iter().map(OsString::from).collect::<Vec<_>>());
    assert_eq!(find(&["-F", "x"]), Some("x".into()));
    assert_eq!(find(&["-vFx"]), Some("x".into()));
    assert_eq!(find(&["-o", "-F", "-p1", "-Fy"]), Some("y".into()));
    assert_eq!(find(&["-i", "-F"]), None);
}

#[test]
fn a_missing_ssh_is_told() {
    let place = Place::new("");
    let mut world = place.world.clone();
    world.env.insert("PATH".into(), place.path("empty").into());
    assert!(matches!(ssh_program(&world), Err(ConfigError::NoProgram(_))));
}

#[test]
fn this_program_under_the_name_of_ssh_is_passed_over() {
    let place = Place::new("");
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), place.path("ssh")).unwrap();
    let mut world = place.world.clone();
    let path = std::env::join_paths([place.directory.path(), Path::new("/usr/bin")]).unwrap();
    world.env.insert("PATH".into(), path);
    assert_eq!(ssh_program(&world).unwrap(), Path::new("/usr/bin/ssh"));
}

proptest! {
    #[test]
    fn an_option_is_one_line_or_refused(
        before in "[a-z =]{0,8}",
        control in proptest::char::range('\0', '\u{1f}'),
        after in "[ -~]{0,8}",
        letter in proptest::sample::select(&["-o", "-l", "-i", "-F", "-J", "-L", "-e", ""]),
    ) {
        let value = format!("{before}{control}{after}");
        let arguments = [letter.into(), OsString::from(&value)];
        let attached = [OsString::from(format!("{letter}{value}"))];
        let alone = letter == "-e" && value.len() == 1 && !"\n\r\0".contains(control);
        for arguments in [&arguments[..], &attached[..]] {
            prop_assert_eq!(check_arguments(arguments).is_ok(), control == '\t' || alone);
        }
    }

    #[test]
    fn options_without_control_characters_are_left_to_ssh(value in "[ -~\u{a0}-\u{ff}]{0,16}") {
        prop_assert!(check_arguments(&["-o".into(), value.into()]).is_ok());
    }
}

#[test]
fn options_leave_the_host_to_be_the_one_that_is_asked_for() {
    let check = |line: &str| {
        let words: Vec<OsString> = line.split_ascii_whitespace().map(Into::into).collect();
        check_options(&words)
    };
    for line in [
        "",
        "-4",
        "-F none -o User=me",
        "-Jjump -vvC",
        "-o ProxyCommand=x -p 22",
        "-F --",
        "-l -",
    ] {
        assert_eq!(check(line), Ok(()), "{line}");
    }
    for line in [
        "other",
        "-F none other",
        "other -4",
        "-4 --",
        "-- other",
        "-o",
        "-vJ",
        "-F none -p",
        "-",
    ] {
        assert_eq!(check(line), Err(ConfigError::NotOptions(line.into())), "{line}");
    }
}

#[tokio::test]
async fn what_a_variable_brings_into_the_dump_is_one_line_or_refused() {
    let mut place = Place::new("Host db\n HostName db.example\n LocalForward ${PLACE} 127.0.0.1:1\n");
    place
        .world
        .env
        .insert("PLACE".into(), "/sock\nproxycommand evil".into());
    let error = Resolver::new().resolve(&place.request("db")).await.unwrap_err();
    assert_eq!(error, ConfigError::ControlCharacter("the variable PLACE".into()));
    place.world.env.insert("PLACE".into(), "/sock".into());
    assert!(Resolver::new().resolve(&place.request("db")).await.is_ok());
    // An unmentioned variable may contain anything: a shell's exported functions have lines.
    place
        .world
        .env
        .insert("BASH_FUNC_f%%".into(), "() {\n true\n}".into());
    assert!(Resolver::new().resolve(&place.request("db")).await.is_ok());
}

#[tokio::test]
async fn an_agent_that_is_refused_somewhere_and_a_host_called_socks_are_left_to_ssh() {
    let path = "ForwardAgent /agent";
    for (config, arguments, directive) in [
        (format!("Host *\n {path}\n"), &[][..], None),
        (
            format!("Host db\n ForwardAgent no\nHost *\n {path}\n"),
            &[],
            Some("forwardagent"),
        ),
        (format!("Host *\n {path}\n"), &["-Ta"], Some("forwardagent")),
        (
            format!("Host *\n {path}\n"),
            &["-o", "forwardagent=no"],
            Some("forwardagent"),
        ),
        ("Host db\n ForwardAgent no\n".to_owned(), &[], None),
        (String::new(), &["-D", "9558"], None),
        (String::new(), &["-L", "9558:socks:22"], Some("dynamicforward")),
        (
            "Host db\n LocalForward 9558 socks:22\n".to_owned(),
            &[],
            Some("dynamicforward"),
        ),
    ] {
        let place = Place::new(&config);
        let mut request = place.request("db");
        request.ssh_args.extend(arguments.iter().map(Into::into));
        let config = Resolver::new().resolve(&request).await.unwrap();
        let reasons = config.needs_system_ssh();
        let directives = reasons.iter().map(|reason| reason.directive.as_str());
        assert_eq!(
            directives.collect::<Vec<_>>(),
            Vec::from_iter(directive),
            "{arguments:?}"
        );
    }
}

#[tokio::test]
async fn a_host_a_user_and_an_alias_may_be_called_none() {
    let place = Place::new("Host db\n HostName none\n User none\n HostKeyAlias none\n BindAddress none\n");
    let config = Resolver::new().resolve(&place.request("db")).await.unwrap();
    assert_eq!((config.hostname.as_str(), config.user.as_str()), ("none", "none"));
    assert_eq!(config.host_key_alias.as_deref(), Some("none"));
    assert_eq!(config.bind_address.as_deref(), Some("none"));
}
