use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use proptest::prelude::*;

use super::super::{
    AddKeysToAgent, AddressFamily, ControlMaster, ControlPersist, ForwardAgent, ForwardTarget, IpQos, Listen,
    LocalCommand, LogLevel, PermitRemoteOpen, Proxy, PubkeyAuthentication, RekeyLimit, RequestTty,
    SessionType, StrictHostKeyChecking, WeakCryptoWarning, dump, tokens,
};
use super::*;

/// Returns the output of the installed ssh without a configuration file.
pub(crate) fn printed_by_ssh(args: &[&str], host: &str) -> String {
    let output = Command::new("ssh")
        .args(["-G", "-F", "none"])
        .args(args)
        .args(["--", host])
        .stdin(Stdio::null())
        .output()
        .expect("ssh (openssh-client) must be installed");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn read(printed: &[u8], world: &World) -> Result<HostConfig, Option<ConfigError>> {
    let account = Account::current().unwrap();
    let local_host = tokens::local_host();
    let around = Surroundings {
        world,
        account: &account,
        local_host: &local_host,
        original_host: "typed",
        config_file: None,
        asked: VersionTokens::default(),
        default_algorithms: &DefaultAlgorithms {
            host_key: vec!["ssh-ed25519".into(), "rsa-sha2-512".into()],
            kex: vec!["sntrup761x25519-sha512".into(), "curve25519-sha256".into()],
        },
    };
    HostConfig::read(dump::parse(printed), &around)
}

fn world() -> World {
    let env = [("SSH_AUTH_SOCK", "/agent"), ("OTHER", "/other")];
    let env = env
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    World::new("/cwd", 0o22, env)
}

pub(crate) fn config_of(printed: &str) -> HostConfig {
    read(printed.as_bytes(), &world()).unwrap()
}

fn with_options(options: &[&str]) -> HostConfig {
    let options: Vec<String> = options.iter().map(|option| format!("-o{option}")).collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    config_of(&printed_by_ssh(&options, "host"))
}

#[test]
fn the_defaults_are_those_of_ssh() {
    let printed = with_options(&[]);
    let assumed = config_of("host host\nhostname host\nport 22\nuser root\n");
    // A line that ssh leaves out means its default: both results agree except for what only ssh can know.
    let known_by_ssh = HostConfig {
        ciphers: printed.ciphers.clone(),
        macs: printed.macs.clone(),
        kex_algorithms: printed.kex_algorithms.clone(),
        kex_is_default: printed.kex_is_default,
        host_key_algorithms: printed.host_key_algorithms.clone(),
        host_key_order_is_free: printed.host_key_order_is_free,
        pubkey_accepted_algorithms: printed.pubkey_accepted_algorithms.clone(),
        ca_signature_algorithms: printed.ca_signature_algorithms.clone(),
        user_known_hosts_files: printed.user_known_hosts_files.clone(),
        global_known_hosts_files: printed.global_known_hosts_files.clone(),
        identity_files: printed.identity_files.clone(),
        ip_qos: printed.ip_qos,
        update_host_keys: printed.update_host_keys,
        obscure_keystroke_timing: printed.obscure_keystroke_timing,
        user: printed.user.clone(),
        fixed_by_master: printed.fixed_by_master.clone(),
        ..assumed
    };
    assert_eq!(printed, known_by_ssh);
    assert!(printed.ciphers.len() > 3 && printed.identity_files.len() >= 5);
    assert!(
        printed
            .identity_files
            .iter()
            .all(|file| file.is_default && file.path.is_absolute())
    );
}

#[test]
fn identity_files_are_expanded_and_told_from_the_default() {
    let config = with_options(&[
        "IdentityFile=~/k-%h-%n-%p-%r-%%-${OTHER}",
        "IdentityFile=\"rel key\"",
        "CertificateFile=~/c-%u",
    ]);
    let account = Account::current().unwrap();
    let home = account.home.display();
    let user = &config.user;
    let paths: Vec<_> = config
        .identity_files
        .iter()
        .map(|file| file.path.to_str().unwrap())
        .collect();
    assert_eq!(
        paths,
        [
            format!("{home}/k-host-host-22-{user}-%-/other"),
            "/cwd/rel key".into()
        ]
    );
    assert!(config.identity_files.iter().all(|file| !file.is_default));
    assert_eq!(
        config.certificate_files,
        [PathBuf::from(format!("{home}/c-{}", account.name))]
    );
    assert_eq!(with_options(&["IdentityFile=none"]).identity_files, []);
}

#[test]
fn agents_are_looked_up_in_the_callers_world() {
    let agent = |option| with_options(&[option]).identity_agent;
    assert_eq!(with_options(&[]).identity_agent, Some("/agent".into()));
    assert_eq!(agent("IdentityAgent=none"), None);
    assert_eq!(agent("IdentityAgent=$OTHER"), Some("/other".into()));
    assert_eq!(agent("IdentityAgent=$UNSET"), None);
    assert_eq!(agent("IdentityAgent=/a-%%-%h"), Some("/a-%-host".into()));
    let forward = |option| with_options(&[option]).forward_agent;
    assert_eq!(forward("ForwardAgent=yes"), ForwardAgent::Yes);
    assert_eq!(
        forward("ForwardAgent=$OTHER"),
        ForwardAgent::Socket("/other".into())
    );
    assert_eq!(forward("ForwardAgent=$UNSET"), ForwardAgent::No);
    let no_agent = with_options(&["ForwardAgent=yes", "IdentityAgent=none"]);
    assert_eq!(no_agent.forward_agent, ForwardAgent::No);
    assert_eq!(forward("ForwardAgent=/x"), ForwardAgent::Socket("/x".into()));
}

#[test]
fn forwardings_are_read_as_typed() {
    let tcp = |host: Option<&str>, port| Listen::Tcp {
        host: host.map(str::to_owned),
        port,
    };
    let to = |host: &str, port| ForwardTarget::Tcp {
        host: host.into(),
        port,
    };
    let config = with_options(&[
        "LocalForward=8080 localhost:80",
        "LocalForward=[::1]:8081 [::2]:80",
        "LocalForward=127.0.0.1:8082 /run/%h.sock",
        "LocalForward=/tmp/l.sock db:80",
        "LocalForward=/tmp/a /tmp/b",
        "DynamicForward=*:1080",
        "RemoteForward=9090",
        "RemoteForward=/tmp/%h 1.2.3.4:5",
    ]);
    let local: Vec<_> = config
        .local_forwards
        .into_iter()
        .map(|f| (f.listen, f.target))
        .collect();
    assert_eq!(
        local,
        [
            (tcp(None, 8080), to("localhost", 80)),
            (tcp(Some("::1"), 8081), to("::2", 80)),
            (
                tcp(Some("127.0.0.1"), 8082),
                ForwardTarget::Socket("/run/host.sock".into())
            ),
            (Listen::Socket("/tmp/l.sock".into()), to("db", 80)),
            (
                Listen::Socket("/tmp/a".into()),
                ForwardTarget::Socket("/tmp/b".into())
            ),
        ]
    );
    assert_eq!(config.dynamic_forwards, [tcp(Some("*"), 1080)]);
    let remote: Vec<_> = config
        .remote_forwards
        .into_iter()
        .map(|f| (f.listen, f.target))
        .collect();
    assert_eq!(
        remote,
        [
            (tcp(None, 9090), ForwardTarget::Socks),
            (Listen::Socket("/tmp/host".into()), to("1.2.3.4", 5))
        ]
    );
}

#[test]
fn proxies_are_expanded() {
    let proxy = |option| with_options(&[option]).proxy;
    assert_eq!(
        proxy("ProxyCommand=nc %h %p %% %n"),
        Proxy::Command("nc host 22 % host".into())
    );
    assert_eq!(proxy("ProxyCommand=none"), Proxy::Direct);
    assert_eq!(proxy("ProxyJump=none"), Proxy::Direct);
    let hops = ["ssh://a@b:23", "ssh://[::1]:24", "d"]
        .map(|hop| hop.parse().unwrap())
        .to_vec();
    assert_eq!(proxy("ProxyJump=a@b:23,[::1]:24,d"), Proxy::Jump(hops));
}

#[test]
fn times_limits_and_words_are_typed() {
    let config = with_options(&[
        "ConnectTimeout=2m30s",
        "RekeyLimit=1G 1h",
        "ControlPersist=10m",
        "AddKeysToAgent=confirm 5m",
        "EscapeChar=^A",
        "IPQoS=af21 32",
        "LogLevel=DEBUG2",
        "StrictHostKeyChecking=accept-new",
        "RequestTTY=force",
        "SessionType=none",
        "AddressFamily=inet6",
        "PubkeyAuthentication=host-bound",
        "SetEnv=A=x=1 B=2",
        "SendEnv=LC_* X",
        "ServerAliveInterval=15",
        "PermitRemoteOpen=*:7",
        "StreamLocalBindMask=0117",
        "PreferredAuthentications=publickey,password",
        "ControlMaster=autoask",
    ]);
    assert_eq!(config.connect_timeout, Some(Duration::from_secs(150)));
    assert_eq!(
        config.rekey_limit,
        RekeyLimit {
            bytes: Some(1 << 30),
            interval: Some(Duration::from_secs(3600))
        }
    );
    assert_eq!(
        config.control_persist,
        ControlPersist::For(Duration::from_secs(600))
    );
    let lifetime = Some(Duration::from_secs(300));
    assert_eq!(
        config.add_keys_to_agent,
        AddKeysToAgent {
            add: true,
            ask: false,
            confirm: true,
            lifetime
        }
    );
    assert_eq!(config.escape_char, Some(1));
    assert_eq!(
        config.ip_qos,
        IpQos {
            interactive: Some(0x48),
            bulk: Some(0x20)
        }
    );
    assert_eq!(config.log_level, LogLevel::Debug2);
    assert_eq!(config.strict_host_key_checking, StrictHostKeyChecking::AcceptNew);
    assert_eq!(config.request_tty, RequestTty::Force);
    assert_eq!(config.session_type, SessionType::None);
    assert_eq!(config.address_family, AddressFamily::Inet6);
    assert_eq!(config.pubkey_authentication, PubkeyAuthentication::HostBound);
    assert_eq!(
        config.set_env,
        [("A".into(), "x=1".into()), ("B".into(), "2".into())]
    );
    assert_eq!(config.send_env, ["LC_*", "X"]);
    assert_eq!(config.server_alive_interval, Some(Duration::from_secs(15)));
    assert_eq!(
        config.permit_remote_open,
        PermitRemoteOpen::Only(vec!["*:7".into()])
    );
    assert_eq!(config.stream_local_bind_mask, 0o117);
    assert_eq!(*config.preferred_authentications, ["publickey", "password"]);
    assert_eq!(config.control_master, ControlMaster::AutoAsk);
}

#[test]
fn newer_directives_are_typed() {
    let config = config_of(
        "host h\nhostname h\nuser u\nport 22\nchanneltimeout session=5m global=60\n\
         obscurekeystroketiming interval:80\nwarnweakcrypto no-pq-kex\nversionaddendum x\nrefuseconnection no\n",
    );
    let timeouts = [
        ("session".into(), Duration::from_secs(300)),
        ("global".into(), Duration::from_secs(60)),
    ];
    assert_eq!(config.channel_timeouts, timeouts);
    assert_eq!(config.obscure_keystroke_timing, Some(Duration::from_millis(80)));
    assert_eq!(config.warn_weak_crypto, WeakCryptoWarning::NoPqKex);
    assert_eq!(config.refuse_connection.as_deref(), Some("no"));
}

#[test]
fn known_hosts_may_reorder_only_a_list_in_the_default_order() {
    let free = |list: &str| {
        config_of(&format!(
            "host h\nhostname h\nuser u\nport 22\nhostkeyalgorithms {list}\n"
        ))
        .host_key_order_is_free
    };
    assert!(free("ssh-ed25519,rsa-sha2-512"), "the default");
    assert!(free("ssh-ed25519,rsa-sha2-512,ssh-rsa"), "+ssh-rsa");
    assert!(free("rsa-sha2-512"), "-ssh-ed25519");
    assert!(!free("rsa-sha2-512,ssh-ed25519"));
    assert!(
        !free("ecdsa-sha2-nistp256,ssh-ed25519,rsa-sha2-512"),
        "^ecdsa-sha2-nistp256"
    );
}

#[test]
fn key_exchange_methods_are_the_defaults_where_nothing_was_added_left_out_or_moved() {
    let is_default = |list: &str| {
        config_of(&format!(
            "host h\nhostname h\nuser u\nport 22\nkexalgorithms {list}\n"
        ))
        .kex_is_default
    };
    assert!(is_default("sntrup761x25519-sha512,curve25519-sha256"));
    for own in [
        "curve25519-sha256",
        "curve25519-sha256,sntrup761x25519-sha512",
        "sntrup761x25519-sha512,curve25519-sha256,ecdh-sha2-nistp256",
    ] {
        assert!(!is_default(own), "{own}");
    }
}

#[test]
fn a_local_command_counts_only_where_it_is_permitted() {
    assert_eq!(with_options(&["LocalCommand=echo %T"]).local_command, None);
    let permitted = with_options(&["LocalCommand=echo %T %h", "PermitLocalCommand=yes"]);
    assert_eq!(
        permitted.local_command,
        Some(LocalCommand("echo NONE host".into()))
    );
}

/// The role of a single directive in sharing is tested in `directives`.
#[test]
fn requests_that_differ_in_who_is_reached_do_not_share() {
    let plain = with_options(&[]).sharing_key();
    for option in [
        "User=other",
        "Port=23",
        "HostName=other",
        "ProxyJump=j",
        "ProxyCommand=nc %h %p",
        "IdentityFile=/k",
        "IPQoS=none",
    ] {
        let key = with_options(&[option]).sharing_key();
        assert!(key != plain && !key.may_meet(&plain), "{option}");
    }
    assert_eq!(plain.to_string().len(), 16);
}

#[test]
fn requests_that_differ_in_what_a_master_of_sshs_decides_for_all_do_not_share_it() {
    let key = |option: &str, has_master: bool| {
        // Debian's ssh trusts windows by default. The first of two values counts.
        let config = Arc::new(with_options(&["ForwardX11=yes", option, "ForwardX11Trusted=no"]));
        let config = if has_master {
            config.through_ssh(&world())
        } else {
            config
        };
        config.sharing_key()
    };
    for option in [
        "ForwardX11Trusted=yes",
        "ForwardX11Timeout=60",
        "XAuthLocation=/x",
        "GatewayPorts=yes",
        "StreamLocalBindMask=0111",
        "StreamLocalBindUnlink=yes",
        "PermitRemoteOpen=db:5432",
        "Tunnel=yes",
        "TunnelDevice=1:2",
        "EnableSSHKeysign=yes",
        "HostbasedAcceptedAlgorithms=ssh-ed25519",
        "GSSAPIDelegateCredentials=yes",
    ] {
        assert_ne!(key(option, true), key("LogLevel=INFO", true), "{option}");
        assert_eq!(key(option, false), key("LogLevel=INFO", false), "{option}");
    }
    assert_eq!(key("RequestTTY=force", true), key("LogLevel=INFO", true));
    let with_line = |line: &str| {
        let config = config_of(&format!("host h\nhostname h\nuser u\nport 22\n{line}\n"));
        Arc::new(config).through_ssh(&world()).sharing_key()
    };
    for (one, other) in [
        // Directives of newer versions.
        ("obscurekeystroketiming yes", "obscurekeystroketiming no"),
        ("channeltimeout session=5m", "channeltimeout none"),
        ("teleport yes", "teleport no"),
        ("addressfamily inet7", "addressfamily inet8"),
    ] {
        assert_ne!(with_line(one), with_line(other));
    }
}

proptest! {
    #[test]
    fn no_output_panics(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = read(&bytes, &world());
    }

    #[test]
    fn no_value_of_a_known_keyword_panics(line in 0usize..200, value in "\\PC{0,24}") {
        let printed = printed_keywords();
        let keyword = &printed[line % printed.len()];
        let text = format!("host h\nhostname h\nuser u\nport 22\n{keyword} {value}\n");
        if let Ok(config) = read(text.as_bytes(), &world()) {
            let _ = (config.needs_system_ssh(), config.sharing_key());
        }
    }
}

fn printed_keywords() -> &'static [String] {
    static KEYWORDS: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();
    KEYWORDS.get_or_init(|| {
        let printed = printed_by_ssh(
            &["-oProxyJump=j", "-oLocalForward=1 a:2", "-oIdentityAgent=x"],
            "h",
        );
        printed
            .lines()
            .filter_map(|line| line.split(' ').next())
            .map(str::to_owned)
            .collect()
    })
}

#[test]
fn send_env_patterns_are_those_of_ssh_config() {
    assert!(sends("LC_*", "LC_ALL") && sends("LANG", "LANG") && sends("L?NG", "LANG") && sends("*", "X"));
    assert!(!sends("LC_*", "LANG") && !sends("LANG", "LANGUAGE") && !sends("", "X"));
}
