//! The resolved configuration of one host, typed.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::account::Account;
use super::algorithms::Algorithms;
use super::dump::{Directive, Fields};
use super::fixed_by_master::FIXED_BY_MASTER;
use super::irrelevant::IRRELEVANT;
use super::tokens::{Allowed, Tokens, VersionTokens};
use super::values::{
    self, AddKeysToAgent, AddressFamily, ControlMaster, ControlPersist, FingerprintHash, Forward,
    ForwardAgent, ForwardTarget, IpQos, Listen, LogLevel, PermitRemoteOpen, PubkeyAuthentication, RekeyLimit,
    RequestTty, SessionType, StrictHostKeyChecking, UpdateHostKeys, WeakCryptoWarning,
};
use super::{CommandWorld, ConfigError, Vantage, World};
use crate::destination::Destination;

/// Everything ssh_config says about one host, after `Host`, `Match`, `Include`, defaults, tokens and variables.
///
/// Paths are absolute: `~`, tokens and `${VAR}` are expanded as ssh expands them, and relative ones begin at the
/// caller's working folder. Directives are documented in ssh_config(5); a comment here says only what differs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "one for each yes/no directive of ssh_config(5)"
)]
pub struct HostConfig {
    /// The host as typed (`%n`).
    pub original_host: String,
    /// The name or address to connect to (`%h`).
    pub hostname: String,
    /// The port, 1 to 65535.
    pub port: u16,
    /// The remote user.
    pub user: String,
    /// The file that `-F` named, absolute, for resolving jump hosts from the same one; "none" stays as it is.
    pub config_file: Option<PathBuf>,

    /// `ProxyJump` and `ProxyCommand`.
    pub proxy: Proxy,
    /// What the last of the jump hosts resolves to, and so on to the first of them; `None` where there are none, or none
    /// was resolved.
    pub jump: Option<Arc<HostConfig>>,
    /// The caller's world, where commands of the user's take part in who is reached or trusted: `ProxyCommand`,
    /// `KnownHostsCommand`, and a `Match exec` in the files, whatever it decided.
    pub commands: Option<CommandWorld>,
    /// `ProxyUseFdpass`; a reason for the system's ssh.
    pub proxy_use_fdpass: bool,
    /// `AddressFamily`.
    pub address_family: AddressFamily,
    /// `BindAddress`.
    pub bind_address: Option<String>,
    /// `BindInterface`.
    pub bind_interface: Option<String>,
    /// `ConnectTimeout`; `None` for the system's own.
    pub connect_timeout: Option<Duration>,
    /// `ConnectionAttempts`, at least 1.
    pub connection_attempts: u32,
    /// `TCPKeepAlive`.
    pub tcp_keep_alive: bool,
    /// `ServerAliveInterval`; `None` where it is 0.
    pub server_alive_interval: Option<Duration>,
    /// `ServerAliveCountMax`.
    pub server_alive_count_max: u32,
    /// `IPQoS`.
    pub ip_qos: IpQos,
    /// `VersionAddendum` (OpenSSH 10): text behind our identification line.
    pub version_addendum: Option<String>,
    /// `RefuseConnection` (OpenSSH 10): do not connect, and say this.
    pub refuse_connection: Option<String>,

    /// `Ciphers`, best first.
    pub ciphers: Vec<String>,
    /// `MACs`, best first.
    pub macs: Vec<String>,
    /// `KexAlgorithms`, best first.
    pub kex_algorithms: Vec<String>,
    /// Whether `kex_algorithms` are those of an ssh without any configuration: nobody has chosen them.
    pub kex_is_default: bool,
    /// `HostKeyAlgorithms`, best first.
    pub host_key_algorithms: Vec<String>,
    /// Whether known_hosts may decide which of `host_key_algorithms` come first.
    ///
    /// ssh lets it where the user set no list, or one that begins with `+` or `-` (sshconnect2.c, `ssh_kex2`).
    /// `ssh -G` prints the resulting list only, so this is true for its default with more behind it or with some
    /// left out: an own list in the default's order expresses no other preference, and is told apart by no one.
    pub host_key_order_is_free: bool,
    /// `PubkeyAcceptedAlgorithms`.
    pub pubkey_accepted_algorithms: Vec<String>,
    /// `CASignatureAlgorithms`.
    pub ca_signature_algorithms: Vec<String>,
    /// `RequiredRSASize`, in bits.
    pub required_rsa_size: u32,
    /// `Compression`.
    pub compression: bool,
    /// `RekeyLimit`.
    pub rekey_limit: RekeyLimit,
    /// `WarnWeakCrypto` (OpenSSH 10.1; an `ssh` before it warns of nothing).
    pub warn_weak_crypto: WeakCryptoWarning,

    /// `UserKnownHostsFile`.
    pub user_known_hosts_files: Vec<PathBuf>,
    /// `GlobalKnownHostsFile`.
    pub global_known_hosts_files: Vec<PathBuf>,
    /// `KnownHostsCommand`, unexpanded; a reason for the system's ssh.
    pub known_hosts_command: Option<String>,
    /// `RevokedHostKeys`. A file that cannot be read refuses every key.
    pub revoked_host_keys: Option<PathBuf>,
    /// `HostKeyAlias`.
    pub host_key_alias: Option<String>,
    /// `StrictHostKeyChecking`.
    pub strict_host_key_checking: StrictHostKeyChecking,
    /// `CheckHostIP`.
    pub check_host_ip: bool,
    /// `HashKnownHosts`.
    pub hash_known_hosts: bool,
    /// `NoHostAuthenticationForLocalhost`.
    pub no_host_authentication_for_localhost: bool,
    /// `UpdateHostKeys`.
    pub update_host_keys: UpdateHostKeys,
    /// `VerifyHostKeyDNS` as printed; other than "false" a reason for the system's ssh.
    pub verify_host_key_dns: String,
    /// `FingerprintHash`.
    pub fingerprint_hash: FingerprintHash,
    /// `VisualHostKey`.
    pub visual_host_key: bool,

    /// What ssh says on standard error while it reads the configuration, whatever LogLevel is: files of `-i` that are not
    /// there, an agent that cannot be forwarded, directives that it no longer has.
    pub remarks: Vec<String>,
    /// `IdentityFile`.
    pub identity_files: Vec<IdentityFile>,
    /// `CertificateFile`.
    pub certificate_files: Vec<PathBuf>,
    /// `IdentitiesOnly`.
    pub identities_only: bool,
    /// The agent's socket: `IdentityAgent`, or the caller's `SSH_AUTH_SOCK`. `None` for no agent.
    pub identity_agent: Option<PathBuf>,
    /// `AddKeysToAgent`.
    pub add_keys_to_agent: AddKeysToAgent,
    /// `ForwardAgent`.
    pub forward_agent: ForwardAgent,
    /// `PKCS11Provider`; a reason for the system's ssh.
    pub pkcs11_provider: Option<String>,
    /// `SecurityKeyProvider` other than the built-in one; a reason for the system's ssh.
    pub security_key_provider: Option<String>,
    /// `PreferredAuthentications`, best first; empty for the default order.
    pub preferred_authentications: Vec<String>,
    /// `PubkeyAuthentication`.
    pub pubkey_authentication: PubkeyAuthentication,
    /// `PasswordAuthentication`.
    pub password_authentication: bool,
    /// `KbdInteractiveAuthentication`.
    pub kbd_interactive_authentication: bool,
    /// `KbdInteractiveDevices`.
    pub kbd_interactive_devices: Option<String>,
    /// `HostbasedAuthentication`; a reason for the system's ssh.
    pub hostbased_authentication: bool,
    /// `GSSAPIAuthentication`; a reason for the system's ssh only where no other method may be tried.
    pub gssapi_authentication: bool,
    /// `GSSAPIKeyExchange`; a reason for the system's ssh.
    pub gssapi_key_exchange: bool,
    /// `NumberOfPasswordPrompts`.
    pub number_of_password_prompts: u32,
    /// `BatchMode`.
    pub batch_mode: bool,

    /// `ControlMaster`.
    pub control_master: ControlMaster,
    /// `ControlPath`.
    pub control_path: Option<PathBuf>,
    /// `ControlPersist`.
    pub control_persist: ControlPersist,

    /// `RemoteCommand`.
    pub remote_command: Option<String>,
    /// `LocalCommand`, where `PermitLocalCommand` allows it.
    pub local_command: Option<LocalCommand>,
    /// `RequestTTY`.
    pub request_tty: RequestTty,
    /// `SessionType`.
    pub session_type: SessionType,
    /// `StdinNull`.
    pub stdin_null: bool,
    /// `ForkAfterAuthentication`.
    pub fork_after_authentication: bool,
    /// `SendEnv`: patterns of names.
    pub send_env: Vec<String>,
    /// `SetEnv`: names and values.
    pub set_env: Vec<(String, String)>,
    /// `EscapeChar`; `None` for none.
    pub escape_char: Option<u8>,
    /// `EnableEscapeCommandline`.
    pub enable_escape_commandline: bool,
    /// `PermitLocalCommand`: for `LocalCommand`, and for `!` in the command line that an escape sequence opens.
    pub permit_local_command: bool,
    /// `ObscureKeystrokeTiming` (OpenSSH 9.5): the interval between packets; `None` where it is off or unknown.
    pub obscure_keystroke_timing: Option<Duration>,
    /// `ChannelTimeout` (OpenSSH 9.6): channel types (or "global") and how long each may be idle.
    pub channel_timeouts: Vec<(String, Duration)>,

    /// `LocalForward`.
    pub local_forwards: Vec<Forward>,
    /// `RemoteForward`.
    pub remote_forwards: Vec<Forward>,
    /// `DynamicForward`.
    pub dynamic_forwards: Vec<Listen>,
    /// `GatewayPorts`.
    pub gateway_ports: bool,
    /// `ExitOnForwardFailure`.
    pub exit_on_forward_failure: bool,
    /// `ClearAllForwardings`, which `ssh -G` has already applied.
    pub clear_all_forwardings: bool,
    /// `PermitRemoteOpen`.
    pub permit_remote_open: PermitRemoteOpen,
    /// `StreamLocalBindMask`: the mask for sockets that forwardings create.
    pub stream_local_bind_mask: u32,
    /// `StreamLocalBindUnlink`.
    pub stream_local_bind_unlink: bool,
    /// `ForwardX11`; a reason for the system's ssh.
    pub forward_x11: bool,
    /// `Tunnel` as printed; other than "false" a reason for the system's ssh.
    pub tunnel: String,

    /// `LogLevel`.
    pub log_level: LogLevel,
    /// Lines with a known keyword and a value that is not understood; each is a reason for the system's ssh.
    pub not_understood: Vec<Directive>,
    /// Directives beside which the files or the command line say something that `ssh -G` does not print.
    pub ambiguous: Vec<Directive>,
    /// Lines with an unknown keyword; each is a reason for the system's ssh.
    pub unknown: Vec<Directive>,
    /// Lines of which a master of the system's ssh goes by its own, whatever the ssh that uses it was told. In one piece: each
    /// host has them, and few hosts such a master.
    pub fixed_by_master: Box<str>,
    /// Whether a master of the system's ssh is shared instead of the engine's connections
    /// ([`through_ssh`](Self::through_ssh)).
    pub has_master: bool,
}

/// How the connection reaches the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proxy {
    /// By TCP.
    Direct,
    /// Through a command's standard input and output. Tokens are expanded; the caller's shell runs it.
    Command(String),
    /// Through jump hosts, the first to be reached first. Each is resolved in turn
    /// ([`Request::for_jump`](super::Request::for_jump)).
    Jump(Vec<Destination>),
}

/// "none", the command, or the jump hosts as `-J` takes them.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("none"),
            Self::Command(command) => write!(f, "command {command}"),
            Self::Jump(hosts) => {
                let hosts: Vec<_> = hosts.iter().map(Destination::to_string).collect();
                write!(f, "jump {}", hosts.join(","))
            }
        }
    }
}

/// A private key file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdentityFile {
    /// The file.
    pub path: PathBuf,
    /// It is one of ssh's own list, not the user's: a missing one is passed over without a word.
    pub is_default: bool,
}

/// What an ssh without any configuration offers, as far as it matters whether somebody has chosen otherwise.
#[derive(Debug, Default)]
pub(crate) struct DefaultAlgorithms {
    pub(crate) host_key: Vec<String>,
    pub(crate) kex: Vec<String>,
}

/// A command to run here once the connection stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LocalCommand(
    /// The command, tokens expanded, for the caller's shell.
    pub String,
);

/// What the reading of a dump needs beside it.
pub(crate) struct Surroundings<'a> {
    pub(crate) world: &'a World,
    pub(crate) account: &'a Account,
    pub(crate) local_host: &'a str,
    pub(crate) original_host: &'a str,
    pub(crate) config_file: Option<PathBuf>,
    pub(crate) asked: VersionTokens,
    /// What the same ssh prints for `HostKeyAlgorithms` where nothing is configured.
    pub(crate) default_algorithms: &'a DefaultAlgorithms,
}

impl HostConfig {
    /// Whom it reaches, as `user@host` in the user's own words.
    pub fn who(&self) -> String {
        format!("{}@{}", self.user, self.original_host)
    }

    /// A host by explicit values, for programs that bring everything themselves: no file, no environment and no `ssh`
    /// takes part.
    ///
    /// `hostname` is a name or an address, `port` 1 to 65535. The rest are OpenSSH's defaults, without what those take from
    /// the user's account: no key files, no agent, no known_hosts files, no proxy, and every algorithm that the engine
    /// has. Fields can be changed before it is used. Unknown host keys are refused (`StrictHostKeyChecking yes`): give
    /// it known_hosts files, or a `Login` that knows the key.
    ///
    /// ```
    /// use trunkline_config::ssh_config::HostConfig;
    ///
    /// let mut host = HostConfig::explicit("db1.example", 22, "monitor")?;
    /// host.user_known_hosts_files = vec!["/etc/monitor/known_hosts".into()];
    /// # Ok::<(), trunkline_config::ssh_config::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::Explicit`] for an empty name or user, and for port 0.
    pub fn explicit(hostname: &str, port: u16, user: &str) -> Result<Self, ConfigError> {
        let directives = explicit_directives();
        let world = World {
            cwd: "/".into(),
            umask: 0o077,
            env: BTreeMap::new(),
            vantage: Vantage::default(),
            limits: crate::ssh_config::Limits::default(),
        };
        let around = Surroundings {
            world: &world,
            account: &Account {
                uid: 0,
                name: user.to_owned(),
                home: "/".into(),
            },
            local_host: "localhost",
            original_host: hostname,
            config_file: Some("none".into()),
            asked: VersionTokens::default(),
            default_algorithms: &DefaultAlgorithms::default(),
        };
        let config = Self::read(directives, around).map_err(|_| ConfigError::Explicit("cannot be used"))?;
        for (value, problem) in [(hostname, "has no name"), (user, "has no user")] {
            if value.is_empty() {
                return Err(ConfigError::Explicit(problem));
            }
        }
        if port == 0 {
            return Err(ConfigError::Explicit("has no port"));
        }
        Ok(Self {
            original_host: hostname.to_owned(),
            hostname: hostname.to_owned(),
            port,
            user: user.to_owned(),
            host_key_order_is_free: true,
            ..config
        })
    }

    /// Types what `ssh -G` printed. A directive that is merely odd is not an error; it is kept in `not_understood`.
    ///
    /// # Errors
    /// [`ConfigError::Expansion`] for a token or variable that ssh would stop at, [`ConfigError::Jump`] for a jump
    /// host that is none; `Err(None)` for output without host, user or port.
    #[expect(clippy::too_many_lines, reason = "a list: each field and its directive")]
    pub(crate) fn read(
        directives: Vec<Directive>,
        around: Surroundings<'_>,
    ) -> Result<Self, Option<ConfigError>> {
        let is_fixed = |directive: &&Directive| FIXED_BY_MASTER.contains(&&*directive.keyword);
        let fixed_by_master: Vec<_> = directives
            .iter()
            .filter(is_fixed)
            .map(|line| format!("{} {}", line.keyword, line.value))
            .collect();
        let mut fields = Fields::new(directives);
        let f = &mut fields;
        let hostname = f.name("hostname").ok_or(None)?;
        let user = f.name("user").ok_or(None)?;
        let port: u16 = f
            .parse("port", |value| value.parse().ok())
            .filter(|&port| port != 0)
            .ok_or(None)?;
        let original_host = f.name("host").unwrap_or_else(|| around.original_host.to_owned());
        let host_key_alias = f.name("hostkeyalias");
        let tokens = Tokens {
            world: around.world,
            account: around.account,
            hostname: &hostname,
            original_host: &original_host,
            key_alias: host_key_alias.as_deref().unwrap_or(&original_host),
            port,
            user: &user,
            local_host: around.local_host,
            asked: around.asked,
        };

        let identity_files = identity_files(f, &tokens)?;
        let certificate_files = f
            .all("certificatefile", |value| Some(value.to_owned()))
            .iter()
            .filter(|file| !file.eq_ignore_ascii_case("none"))
            .map(|file| tokens.path("CertificateFile", file))
            .collect::<Result<_, _>>()?;
        let proxy = proxy(f, &tokens)?;
        let permitted = f.flag("permitlocalcommand", false);
        let local_command = f
            .text("localcommand")
            .filter(|_| permitted)
            .map(|command| {
                tokens
                    .command("LocalCommand", &command, Allowed::LocalCommand)
                    .map(LocalCommand)
            })
            .transpose()?;
        let identity_agent = identity_agent(f, around.world);
        let forward_agent = match forward_agent(f, around.world) {
            // ssh.c, `check_agent_present`: without an agent there is none to forward.
            ForwardAgent::Yes if identity_agent.is_none() => ForwardAgent::No,
            forward => forward,
        };
        let global_known_hosts_files = path_list(f, "globalknownhostsfile")
            .iter()
            // ssh expands the tilde here, and nothing else.
            .map(|file| around.account.expand_tilde(file).unwrap_or_else(|| file.clone()))
            .map(|file| around.world.absolute(file.as_ref()))
            .collect();
        let absolute = |path: &String| around.world.absolute(path.as_ref());
        let local_forwards: Vec<Forward> = f.all("localforward", Forward::parse);
        let dynamic_forwards = f
            .all("dynamicforward", Listen::parse)
            .into_iter()
            // dump_cfg_forwards prints a forwarding to a socket a second time, as if it were dynamic.
            .filter(|listen| {
                let is_it = |f: &Forward| f.listen == *listen && matches!(f.target, ForwardTarget::Socket(_));
                !local_forwards.iter().any(is_it)
            })
            .collect();

        let host_key_algorithms = f.names("hostkeyalgorithms");
        let DefaultAlgorithms {
            host_key: default,
            kex,
        } = around.default_algorithms;
        let kex_algorithms = f.names("kexalgorithms");

        let mut config = Self {
            config_file: around.config_file,
            remarks: Vec::new(),
            proxy,
            jump: None,
            commands: None,
            proxy_use_fdpass: f.flag("proxyusefdpass", false),
            address_family: f
                .parse("addressfamily", AddressFamily::parse)
                .unwrap_or(AddressFamily::Any),
            bind_address: f.name("bindaddress"),
            bind_interface: f.name("bindinterface"),
            connect_timeout: seconds(f, "connecttimeout"),
            connection_attempts: f.number("connectionattempts", 1).max(1),
            // "all" (OpenSSH 10.6) is for the sockets of forwardings, too.
            tcp_keep_alive: f
                .parse("tcpkeepalive", |value| match value {
                    "all" => Some(true),
                    value => values::flag(value),
                })
                .unwrap_or(true),
            server_alive_interval: seconds(f, "serveraliveinterval"),
            server_alive_count_max: f.number("serveralivecountmax", 3),
            ip_qos: f.parse("ipqos", IpQos::parse).unwrap_or_default(),
            version_addendum: f.text("versionaddendum"),
            refuse_connection: f.text("refuseconnection"),

            ciphers: f.names("ciphers"),
            macs: f.names("macs"),
            kex_is_default: !kex.is_empty() && kex_algorithms == *kex,
            kex_algorithms,
            host_key_order_is_free: host_key_algorithms.starts_with(default)
                || is_subsequence(&host_key_algorithms, default),
            host_key_algorithms,
            pubkey_accepted_algorithms: either(
                f.names("pubkeyacceptedalgorithms"),
                f.names("pubkeyacceptedkeytypes"),
            ),
            ca_signature_algorithms: f.names("casignaturealgorithms"),
            required_rsa_size: f.number("requiredrsasize", 1024),
            // ssh -G of OpenSSH 9.9 and later has no word for what "yes" means there.
            compression: f
                .parse("compression", |value| match value {
                    "UNKNOWN" => Some(true),
                    value => values::flag(value),
                })
                .unwrap_or(false),
            rekey_limit: f.parse("rekeylimit", RekeyLimit::parse).unwrap_or_default(),
            warn_weak_crypto: f
                .parse("warnweakcrypto", WeakCryptoWarning::parse)
                .unwrap_or(WeakCryptoWarning::No),

            user_known_hosts_files: path_list(f, "userknownhostsfile").iter().map(absolute).collect(),
            global_known_hosts_files,
            known_hosts_command: f.text("knownhostscommand"),
            revoked_host_keys: f.text("revokedhostkeys").as_ref().map(absolute),
            host_key_alias: host_key_alias.clone(),
            strict_host_key_checking: f
                .parse("stricthostkeychecking", StrictHostKeyChecking::parse)
                .unwrap_or(StrictHostKeyChecking::Ask),
            check_host_ip: f.flag("checkhostip", false),
            hash_known_hosts: f.flag("hashknownhosts", false),
            no_host_authentication_for_localhost: f.flag("nohostauthenticationforlocalhost", false),
            update_host_keys: f
                .parse("updatehostkeys", UpdateHostKeys::parse)
                .unwrap_or(UpdateHostKeys::No),
            verify_host_key_dns: f.text("verifyhostkeydns").unwrap_or_else(|| "false".into()),
            fingerprint_hash: f
                .parse("fingerprinthash", FingerprintHash::parse)
                .unwrap_or(FingerprintHash::Sha256),
            visual_host_key: f.flag("visualhostkey", false),

            identity_files,
            certificate_files,
            identities_only: f.flag("identitiesonly", false),
            identity_agent,
            add_keys_to_agent: f
                .parse("addkeystoagent", AddKeysToAgent::parse)
                .unwrap_or_default(),
            forward_agent,
            pkcs11_provider: f.text("pkcs11provider"),
            security_key_provider: security_key_provider(f, around.world),
            preferred_authentications: f.names("preferredauthentications"),
            pubkey_authentication: f
                .parse("pubkeyauthentication", PubkeyAuthentication::parse)
                .unwrap_or(PubkeyAuthentication::Yes),
            password_authentication: f.flag("passwordauthentication", true),
            kbd_interactive_authentication: f.flag("kbdinteractiveauthentication", true)
                // The name before OpenSSH 8.7, which only says so where it says no.
                && f.flag("challengeresponseauthentication", true),
            kbd_interactive_devices: f.name("kbdinteractivedevices"),
            hostbased_authentication: f.flag("hostbasedauthentication", false),
            gssapi_authentication: f.flag("gssapiauthentication", false),
            gssapi_key_exchange: f.flag("gssapikeyexchange", false),
            number_of_password_prompts: f.number("numberofpasswordprompts", 3),
            batch_mode: f.flag("batchmode", false),

            control_master: f
                .parse("controlmaster", ControlMaster::parse)
                .unwrap_or(ControlMaster::No),
            control_path: f.text("controlpath").as_ref().map(absolute),
            control_persist: f
                .parse("controlpersist", ControlPersist::parse)
                .unwrap_or(ControlPersist::No),

            remote_command: f.text("remotecommand"),
            local_command,
            request_tty: f
                .parse("requesttty", RequestTty::parse)
                .unwrap_or(RequestTty::Auto),
            session_type: f
                .parse("sessiontype", SessionType::parse)
                .unwrap_or(SessionType::Default),
            stdin_null: f.flag("stdinnull", false),
            fork_after_authentication: f.flag("forkafterauthentication", false),
            send_env: f.all("sendenv", |value| Some(value.to_owned())),
            set_env: f.all("setenv", |value| {
                let (name, value) = value.split_once('=')?;
                Some((name.to_owned(), value.to_owned()))
            }),
            escape_char: f.parse("escapechar", values::escape_char).unwrap_or(Some(b'~')),
            enable_escape_commandline: f.flag("enableescapecommandline", false),
            permit_local_command: permitted,
            obscure_keystroke_timing: f.parse("obscurekeystroketiming", keystroke_interval).flatten(),
            channel_timeouts: f.parse("channeltimeout", channel_timeouts).unwrap_or_default(),

            local_forwards,
            remote_forwards: f.all("remoteforward", Forward::parse),
            dynamic_forwards,
            gateway_ports: f.flag("gatewayports", false),
            exit_on_forward_failure: f.flag("exitonforwardfailure", false),
            clear_all_forwardings: f.flag("clearallforwardings", false),
            permit_remote_open: f
                .parse("permitremoteopen", |value| Some(PermitRemoteOpen::parse(value)))
                .unwrap_or(PermitRemoteOpen::Any),
            stream_local_bind_mask: f
                .parse("streamlocalbindmask", |value| u32::from_str_radix(value, 8).ok())
                .unwrap_or(0o177),
            stream_local_bind_unlink: f.flag("streamlocalbindunlink", false),
            forward_x11: f.flag("forwardx11", false),
            tunnel: f.text("tunnel").unwrap_or_else(|| "false".into()),

            log_level: f.parse("loglevel", LogLevel::parse).unwrap_or(LogLevel::Info),
            original_host: original_host.clone(),
            hostname: hostname.clone(),
            port,
            user: user.clone(),
            not_understood: Vec::new(),
            ambiguous: Vec::new(),
            unknown: Vec::new(),
            fixed_by_master: fixed_by_master.join("\n").into(),
            has_master: false,
        };
        let (left, not_understood) = fields.left();
        let irrelevant = |directive: &Directive| {
            IRRELEVANT.iter().any(|(name, _)| *name == directive.keyword)
                || FIXED_BY_MASTER.contains(&&*directive.keyword)
        };
        config.unknown = left
            .into_iter()
            .filter(|directive| !irrelevant(directive))
            .collect();
        config.not_understood = not_understood;
        Ok(config)
    }

    /// Whether commands of the user's take part in who is reached or trusted, on the way or at its end.
    #[must_use]
    pub fn runs_commands(&self) -> bool {
        self.commands.is_some() || self.jump.as_deref().is_some_and(Self::runs_commands)
    }

    /// Whether the same commands would see the same in another caller's world.
    #[must_use]
    pub fn is_for(&self, world: &World) -> bool {
        let same = self
            .commands
            .as_ref()
            .is_none_or(|commands| commands.is_that_of(world));
        same && self.jump.as_deref().is_none_or(|jump| jump.is_for(world))
    }

    /// The same host as ssh itself reaches it, for a caller in `world`: ssh reads more of the environment than its
    /// configuration tells (KRB5CCNAME, which says who one is; what PKCS#11 libraries go by), and its master decides more
    /// for those that share it.
    #[must_use]
    pub fn through_ssh(self: &Arc<Self>, world: &World) -> Arc<Self> {
        let of_caller = || CommandWorld::of(world, |_| false);
        Arc::new(Self {
            commands: Some(self.commands.clone().unwrap_or_else(of_caller)),
            has_master: true,
            ..Self::clone(self)
        })
    }

    /// What stands in the login shell's place, if the caller has no command of its own: RemoteCommand.
    ///
    /// # Errors
    /// [`ConfigError::TwoCommands`].
    pub fn remote_command(&self, has_command: bool) -> Result<Option<&str>, ConfigError> {
        match &self.remote_command {
            Some(_) if has_command => Err(ConfigError::TwoCommands),
            command => Ok(command.as_deref()),
        }
    }

    /// The environment variables that SendEnv and SetEnv ask for, in the order in which OpenSSH's client sends them.
    pub fn session_env<'a>(&'a self, world: &'a World) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let sendable = world
            .env
            .iter()
            .filter_map(|(name, value)| Some((name.to_str()?, value.as_bytes())))
            .filter(|(name, _)| self.send_env.iter().any(|pattern| sends(pattern, name)));
        let set = self.set_env.iter();
        sendable.chain(set.map(|(name, value)| (name.as_str(), value.as_bytes())))
    }
}

/// What `ssh -G` would say of an explicit host where it differs from the defaults of [`HostConfig::read`]. The names are
/// placeholders.
fn explicit_directives() -> Vec<Directive> {
    let host_keys = trunkline_proto::HOST_KEY_ALGORITHMS.join(",");
    let Algorithms {
        kex,
        host_key,
        cipher,
        mac,
        ..
    } = Algorithms::offered();
    let directives: [(&str, String); 10] = [
        ("host", "-".into()),
        ("hostname", "-".into()),
        ("user", "-".into()),
        ("port", "22".into()),
        ("ciphers", cipher.join(",")),
        ("macs", mac.join(",")),
        ("kexalgorithms", kex.join(",")),
        ("hostkeyalgorithms", host_keys.clone()),
        ("pubkeyacceptedalgorithms", host_keys),
        ("casignaturealgorithms", host_key.join(",")),
    ];
    let own = [("stricthostkeychecking", "true"), ("identityagent", "none")];
    directives
        .into_iter()
        .chain(own.map(|(keyword, value)| (keyword, value.to_owned())))
        .map(|(keyword, value)| Directive {
            keyword: keyword.to_owned(),
            value,
        })
        .collect()
}

/// The lists of `~/.ssh/id_*` that ssh falls back on have these in common, from 9.2 (which adds `id_xmss` and
/// `id_dsa`) to 10.6 (which adds `id_mldsa44_ed25519`).
const DEFAULT_IDENTITIES: &[&str] = &[
    "~/.ssh/id_rsa",
    "~/.ssh/id_ecdsa",
    "~/.ssh/id_ecdsa_sk",
    "~/.ssh/id_ed25519",
    "~/.ssh/id_ed25519_sk",
];

/// `ssh -G` prints ssh's own list as if the user had written it. A list that holds all of the default names and no
/// other is taken for it: whoever writes exactly that gets what the default would give.
fn identity_files(fields: &mut Fields, tokens: &Tokens<'_>) -> Result<Vec<IdentityFile>, ConfigError> {
    let files = fields.all("identityfile", |value| Some(value.to_owned()));
    let is_default = DEFAULT_IDENTITIES
        .iter()
        .all(|name| files.iter().any(|file| file == name))
        && files.iter().all(|file| {
            DEFAULT_IDENTITIES.contains(&file.as_str())
                || ["~/.ssh/id_xmss", "~/.ssh/id_dsa", "~/.ssh/id_mldsa44_ed25519"].contains(&file.as_str())
        });
    files
        .iter()
        .filter(|file| !file.eq_ignore_ascii_case("none"))
        .map(|file| {
            Ok(IdentityFile {
                path: tokens.path("IdentityFile", file)?,
                is_default,
            })
        })
        .collect()
}

fn proxy(fields: &mut Fields, tokens: &Tokens<'_>) -> Result<Proxy, ConfigError> {
    let command = fields.text("proxycommand");
    if let Some(jump) = fields.text("proxyjump") {
        // ssh turns the jump into a ProxyCommand, so that the same tokens work in it.
        let jump = tokens.command("ProxyJump", &jump, Allowed::Proxy)?;
        let hops = jump
            .split(',')
            .map(|hop| Destination::parse_hop(hop.trim()))
            .collect::<Result<_, _>>()?;
        return Ok(Proxy::Jump(hops));
    }
    match command {
        Some(command) => Ok(Proxy::Command(tokens.command(
            "ProxyCommand",
            &command,
            Allowed::Proxy,
        )?)),
        None => Ok(Proxy::Direct),
    }
}

/// ssh.c: `none`, `SSH_AUTH_SOCK`, `$VAR`, or a path that `ssh -G` has expanded; by default `SSH_AUTH_SOCK`.
fn identity_agent(fields: &mut Fields, world: &World) -> Option<PathBuf> {
    let from = |name: &str| {
        world
            .var(name)
            .filter(|value| !value.is_empty())
            .map(|value| world.absolute(value.as_ref()))
    };
    match fields
        .parse("identityagent", |value| Some(value.to_owned()))
        .as_deref()
    {
        None | Some("SSH_AUTH_SOCK") => from("SSH_AUTH_SOCK"),
        Some("none") => None,
        Some(value) => match value.strip_prefix('$') {
            Some(name) if !name.starts_with('{') => from(name),
            _ => Some(world.absolute(value.as_ref())),
        },
    }
}

/// ssh.c: a variable that is not set turns the forwarding off.
fn forward_agent(fields: &mut Fields, world: &World) -> ForwardAgent {
    match fields
        .parse("forwardagent", |value| Some(value.to_owned()))
        .as_deref()
    {
        None | Some("no" | "false") => ForwardAgent::No,
        Some("yes" | "true") => ForwardAgent::Yes,
        Some(value) => match value.strip_prefix('$') {
            Some(name) => match world.var(name) {
                Some(socket) => ForwardAgent::Socket(world.absolute(socket.as_ref())),
                None => ForwardAgent::No,
            },
            None => ForwardAgent::Socket(world.absolute(value.as_ref())),
        },
    }
}

/// ssh.c: `$VAR` names a variable, and no provider where that is not set. `internal` is what the agent does, too.
fn security_key_provider(fields: &mut Fields, world: &World) -> Option<String> {
    let provider = fields.text("securitykeyprovider")?;
    let provider = match provider.strip_prefix('$') {
        Some(name) => world.var(name)?.to_string_lossy().into_owned(),
        None => provider,
    };
    // Empty is what is left of a variable that somebody has unset so: no provider at all.
    (provider != "internal" && !provider.is_empty()).then_some(provider)
}

fn path_list(fields: &mut Fields, keyword: &str) -> Vec<String> {
    let list = fields
        .parse(keyword, |value| Some(values::paths(value)))
        .unwrap_or_default();
    if list.len() == 1 && list[0].eq_ignore_ascii_case("none") {
        Vec::new()
    } else {
        list
    }
}

/// A number of seconds; "none" and 0 mean no limit.
fn seconds(fields: &mut Fields, keyword: &str) -> Option<Duration> {
    let read = |value: &str| {
        if value == "none" {
            Some(Duration::ZERO)
        } else {
            values::duration(value)
        }
    };
    fields.parse(keyword, read).filter(|time| !time.is_zero())
}

/// `yes` is 20 ms, SSH_KEYSTROKE_DEFAULT_INTERVAL_MS in OpenSSH's ssh.h.
#[allow(clippy::option_option, reason = "\"no\" is a value that is understood")]
fn keystroke_interval(value: &str) -> Option<Option<Duration>> {
    match values::flag(value) {
        Some(yes) => Some(yes.then_some(Duration::from_millis(20))),
        None => {
            let milliseconds = value.strip_prefix("interval:").unwrap_or(value);
            milliseconds
                .parse()
                .ok()
                .map(|milliseconds| Some(Duration::from_millis(milliseconds)))
        }
    }
}

fn channel_timeouts(value: &str) -> Option<Vec<(String, Duration)>> {
    if value == "none" {
        return Some(Vec::new());
    }
    value
        .split_whitespace()
        .map(|entry| {
            let (kind, time) = entry.split_once('=')?;
            // In seconds, with a fraction from OpenSSH 10.6 on.
            let fraction = || Duration::try_from_secs_f64(time.parse().ok()?).ok();
            Some((kind.to_owned(), values::duration(time).or_else(fraction)?))
        })
        .collect()
}

/// Whether `part` is `whole` with some left out.
fn is_subsequence(part: &[String], whole: &[String]) -> bool {
    let mut whole = whole.iter();
    part.iter().all(|name| whole.any(|other| other == name))
}

fn either(names: Vec<String>, older: Vec<String>) -> Vec<String> {
    if names.is_empty() { older } else { names }
}

/// Whether a SendEnv pattern, with `*` and `?`, matches a name.
fn sends(pattern: &str, name: &str) -> bool {
    fn matches(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) if matches(rest, name) => true,
            (Some((b'*', _)), Some((_, name))) => matches(pattern, name),
            (Some((b'?', rest)), Some((_, name))) => matches(rest, name),
            (Some((p, rest)), Some((n, name))) => p == n && matches(rest, name),
            _ => false,
        }
    }
    matches(pattern.as_bytes(), name.as_bytes())
}

#[cfg(test)]
pub(crate) mod tests;
