//! Every directive of ssh_config, once: its field, how its value is parsed, and its role in sharing connections.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::dump::Fields;
use super::readers::{self, IdentityFile, LocalCommand, Proxy};
use super::tokens::Tokens;
use super::values::{
    self, AddKeysToAgent, AddressFamily, ControlMaster, ControlPersist, FingerprintHash, Forward,
    ForwardAgent, IpQos, Listen, LogLevel, NameList, PermitRemoteOpen, PubkeyAuthentication, RekeyLimit,
    RequestTty, SessionType, Shown, StrictHostKeyChecking, UpdateHostKeys, WeakCryptoWarning,
};
use super::{CommandWorld, ConfigError, dump};

/// The role of a directive in sharing a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It decides who is reached, trusted or shown, or how: it must be equal. This is the default.
    Shared,
    /// It says how to log in: the connection must have been logged in as it allows ([`LogIn`](super::LogIn)).
    LogIn,
    /// It only applies to its own request: to what it runs, or to a connection that is made for it.
    Own,
    /// Only a master of the system's ssh uses it.
    Master,
    /// Nothing uses it, for this reason.
    Irrelevant(&'static str),
}

/// The reason why a directive leaves a host to the system's ssh.
#[derive(Debug, Clone, Copy)]
pub(super) struct OnlySsh {
    pub(super) why: &'static str,
    /// It applies only to some values, which `support` knows.
    pub(super) depends: bool,
}

const NONE_OF_THESE: &str = "the engine has none of these";

/// A directive.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its name, in lower case.
    pub keyword: &'static str,
    /// Its role in sharing a connection.
    pub role: Role,
    /// A master of ssh applies the value that it was started with to every session and forwarding: the mux protocol
    /// (OpenSSH's PROTOCOL.mux) cannot transmit it, so the value of the ssh that connects does not count.
    pub(super) is_fixed_by_master: bool,
    pub(super) only_ssh: Option<OnlySsh>,
}

impl Row {
    const fn new(keyword: &'static str) -> Self {
        Self {
            keyword,
            role: Role::Shared,
            is_fixed_by_master: false,
            only_ssh: None,
        }
    }

    const fn share(self) -> Self {
        self
    }

    const fn log_in(self) -> Self {
        Self {
            role: Role::LogIn,
            ..self
        }
    }

    const fn own(self) -> Self {
        Self {
            role: Role::Own,
            ..self
        }
    }

    /// Like [`Self::own`], except over a master of ssh.
    const fn own_but_for_masters(self) -> Self {
        Self {
            is_fixed_by_master: true,
            ..self.own()
        }
    }

    const fn of_masters(self) -> Self {
        Self {
            role: Role::Master,
            is_fixed_by_master: true,
            ..self
        }
    }

    const fn irrelevant(self, why: &'static str) -> Self {
        Self {
            role: Role::Irrelevant(why),
            ..self
        }
    }

    /// Leaves the host to the system's ssh if the directive is set.
    const fn only_ssh(self, why: &'static str) -> Self {
        Self {
            only_ssh: Some(OnlySsh { why, depends: false }),
            ..self
        }
    }

    /// Leaves the host to the system's ssh if the directive has a value that only ssh supports.
    const fn only_ssh_where(self, why: &'static str) -> Self {
        Self {
            only_ssh: Some(OnlySsh { why, depends: true }),
            ..self
        }
    }
}

/// Generates everything that has to know each directive: the documented fields, the parser, the comparison, the ignored
/// ones, and those that are left to the system's ssh.
macro_rules! directives {
    (
        ($f:ident, $k:ident, $tokens:ident, $around:ident)
        $(#[$about:meta])*
        pub struct HostConfig { $($(#[doc = $meaning:literal])+ $beside:ident: $of:ty,)* }
        $($(#[doc = $doc:literal])+ $field:ident: $kind:ty = $keyword:literal => $read:expr $(, $role:ident $(($($says:expr),+))?)*;)*
        without a field: $($other:literal, $other_role:ident $(($($other_says:expr),+))?;)*
    ) => {
        $(#[$about])*
        pub struct HostConfig {
            $($(#[doc = $meaning])+ pub $beside: $of,)*
            $($(#[doc = $doc])+ pub $field: $kind,)*
        }

        /// The parts of a [`HostConfig`] that no single directive determines.
        pub(super) struct Beside {
            $(pub(super) $beside: $of,)*
        }

        /// Every known directive.
        pub const DIRECTIVES: &[Row] = &[
            $(Row::new($keyword)$(.$role($($($says),+)?))*,)*
            $(Row::new($other).$other_role($($($other_says),+)?),)*
        ];

        impl HostConfig {
            /// Parses each directive. Later ones may use the fields of earlier ones.
            pub(super) fn from_rows(
                beside: Beside,
                $f: &mut Fields,
                $tokens: &Tokens<'_>,
                $around: &readers::Surroundings<'_>,
            ) -> Result<Self, ConfigError> {
                $(
                    let $k = $keyword;
                    let $field: $kind = $read;
                )*
                Ok(Self { $($beside: beside.$beside,)* $($field,)* })
            }

            /// Returns the value of a directive that has a field.
            pub(super) fn value_of(&self, keyword: &str) -> Option<&dyn Shown> {
                match keyword {
                    $($keyword => Some(&self.$field),)*
                    _ => None,
                }
            }
        }
    };
}

directives! {
    (f, k, tokens, around)

    /// The configuration of one host, after `Host`, `Match`, `Include`, defaults, tokens and variables.
    ///
    /// Paths are absolute: `~`, tokens and `${VAR}` are expanded as in ssh, and relative ones begin at the caller's
    /// working directory. Directives are documented in ssh_config(5); a comment here only gives differences.
    #[derive(Debug, Clone, PartialEq, Eq)]
    #[allow(
        clippy::struct_excessive_bools,
        reason = "one for each yes/no directive of ssh_config(5)"
    )]
    pub struct HostConfig {
        /// The host as typed (`%n`).
        original_host: String,
        /// The name or address to connect to (`%h`).
        hostname: String,
        /// The port, 1 to 65535.
        port: u16,
        /// The remote user.
        user: String,
        /// The argument of `-F`, absolute, for resolving jump hosts from the same file; "none" is kept.
        config_file: Option<PathBuf>,
        /// The configuration of the last jump host, which contains that of the one before it, and so on; `None` if
        /// there are none, or none was resolved.
        jump: Option<Arc<HostConfig>>,
        /// The caller's environment, if the user's commands take part in who is reached or trusted: `ProxyCommand`,
        /// `KnownHostsCommand`, and a `Match exec` in the files, whatever its result.
        commands: Option<CommandWorld>,
        /// `kex_algorithms` are ssh's defaults, so nobody has chosen them.
        kex_is_default: bool,
        /// Known_hosts may decide which of `host_key_algorithms` come first.
        ///
        /// ssh allows that if the user set no list, or one that begins with `+` or `-` (sshconnect2.c, `ssh_kex2`).
        /// `ssh -G` only prints the resulting list, so this is true for its default with some appended or left out: a
        /// user's list in the default's order expresses no other preference, and cannot be distinguished.
        host_key_order_is_free: bool,
        /// ssh's messages on standard error while it reads the configuration, at any LogLevel: missing files of `-i`,
        /// an agent that cannot be forwarded, obsolete directives.
        remarks: Vec<String>,
        /// Lines with a known keyword and an unknown value; each is a reason for the system's ssh.
        not_understood: Vec<dump::Directive>,
        /// Directives for which the files or the command line have a setting that `ssh -G` does not print.
        ambiguous: Vec<dump::Directive>,
        /// Lines with an unknown keyword; each is a reason for the system's ssh.
        unknown: Vec<dump::Directive>,
        /// Lines for which a master of the system's ssh uses its own value, whatever the ssh that connects has. In one
        /// piece: each host has them, but few have such a master.
        fixed_by_master: Box<str>,
        /// A master of the system's ssh is shared instead of the engine's connections
        /// ([`through_ssh`](Self::through_ssh)).
        has_master: bool,
    }

    // Reaching the host.

    /// `ProxyJump` and `ProxyCommand`.
    proxy: Proxy = "proxycommand" => readers::proxy(f, k, tokens)?;
    /// `ProxyUseFdpass`.
    proxy_use_fdpass: bool = "proxyusefdpass" => f.flag(k, false),
        only_ssh("a proxy that passes a file descriptor is understood by ssh only");
    /// `AddressFamily`.
    address_family: AddressFamily = "addressfamily" => f.word(k, AddressFamily::parse, AddressFamily::Any);
    /// `BindAddress`.
    bind_address: Option<String> = "bindaddress" => f.name(k);
    /// `BindInterface`.
    bind_interface: Option<String> = "bindinterface" => f.name(k);
    /// `ConnectTimeout`; `None` for the system's own.
    connect_timeout: Option<Duration> = "connecttimeout" => f.seconds(k), own;
    /// `ConnectionAttempts`, at least 1.
    connection_attempts: u32 = "connectionattempts" => f.number(k, 1).max(1), own;
    /// `TCPKeepAlive`. "all" (OpenSSH 10.6) also applies to the sockets of forwardings.
    tcp_keep_alive: bool = "tcpkeepalive" => f.word(k, |value| if value == "all" { Some(true) } else { values::flag(value) }, true), own;
    /// `ServerAliveInterval`; `None` if it is 0.
    server_alive_interval: Option<Duration> = "serveraliveinterval" => f.seconds(k), own;
    /// `ServerAliveCountMax`.
    server_alive_count_max: u32 = "serveralivecountmax" => f.number(k, 3), own;
    /// `IPQoS`.
    ip_qos: IpQos = "ipqos" => f.word(k, IpQos::parse, IpQos::default());
    /// `VersionAddendum` (OpenSSH 10): text after our identification line.
    version_addendum: Option<String> = "versionaddendum" => f.text(k),
        only_ssh("text of one's own behind the identification is sent by ssh only");
    /// `RefuseConnection` (OpenSSH 10): do not connect, and show this text.
    refuse_connection: Option<String> = "refuseconnection" => f.text(k);

    // The transport.

    /// `Ciphers`, best first.
    ciphers: NameList = "ciphers" => f.names(k), only_ssh_where(NONE_OF_THESE);
    /// `MACs`, best first.
    macs: NameList = "macs" => f.names(k), only_ssh_where(NONE_OF_THESE);
    /// `KexAlgorithms`, best first.
    kex_algorithms: NameList = "kexalgorithms" => f.names(k), only_ssh_where(NONE_OF_THESE);
    /// `HostKeyAlgorithms`, best first.
    host_key_algorithms: NameList = "hostkeyalgorithms" => f.names(k),
        only_ssh_where(NONE_OF_THESE);
    /// `PubkeyAcceptedAlgorithms`; the name before OpenSSH 8.5 was `PubkeyAcceptedKeyTypes`.
    pubkey_accepted_algorithms: NameList = "pubkeyacceptedalgorithms" => f.names_or(k, "pubkeyacceptedkeytypes");
    /// `CASignatureAlgorithms`.
    ca_signature_algorithms: NameList = "casignaturealgorithms" => f.names(k);
    /// `RequiredRSASize`, in bits.
    required_rsa_size: u32 = "requiredrsasize" => f.number(k, 1024);
    /// `Compression`. `ssh -G` of OpenSSH 9.9 and later prints UNKNOWN for "yes".
    compression: bool = "compression" => f.word(k, |value| if value == "UNKNOWN" { Some(true) } else { values::flag(value) }, false);
    /// `RekeyLimit`.
    rekey_limit: RekeyLimit = "rekeylimit" => f.word(k, RekeyLimit::parse, RekeyLimit::default());
    /// `WarnWeakCrypto` (OpenSSH 10.1; earlier versions warn of nothing).
    warn_weak_crypto: WeakCryptoWarning = "warnweakcrypto" => f.word(k, WeakCryptoWarning::parse, WeakCryptoWarning::No), own;

    // Verifying the server.

    /// `UserKnownHostsFile`.
    user_known_hosts_files: Vec<PathBuf> = "userknownhostsfile" => f.paths(k).iter().map(|file| around.absolute(file)).collect();
    /// `GlobalKnownHostsFile`. ssh only expands the tilde here.
    global_known_hosts_files: Vec<PathBuf> = "globalknownhostsfile" => f.paths(k).iter()
        .map(|file| around.account.expand_tilde(file).unwrap_or_else(|| file.clone()))
        .map(|file| around.absolute(&file))
        .collect();
    /// `KnownHostsCommand`, unexpanded.
    known_hosts_command: Option<String> = "knownhostscommand" => f.text(k), only_ssh("only ssh runs a KnownHostsCommand");
    /// `RevokedHostKeys`. An unreadable file refuses every key.
    revoked_host_keys: Option<PathBuf> = "revokedhostkeys" => f.text(k).map(|file| around.absolute(&file)),
        only_ssh_where("the file is a binary revocation list, which ssh reads; a list of keys would do"
        );
    /// `HostKeyAlias`.
    host_key_alias: Option<String> = "hostkeyalias" => f.name(k);
    /// `StrictHostKeyChecking`.
    strict_host_key_checking: StrictHostKeyChecking = "stricthostkeychecking" =>
        f.word(k, StrictHostKeyChecking::parse, StrictHostKeyChecking::Ask), log_in;
    /// `CheckHostIP`.
    check_host_ip: bool = "checkhostip" => f.flag(k, false);
    /// `HashKnownHosts`.
    hash_known_hosts: bool = "hashknownhosts" => f.flag(k, false), own;
    /// `NoHostAuthenticationForLocalhost`.
    no_host_authentication_for_localhost: bool = "nohostauthenticationforlocalhost" => f.flag(k, false);
    /// `UpdateHostKeys`.
    update_host_keys: UpdateHostKeys = "updatehostkeys" => f.word(k, UpdateHostKeys::parse, UpdateHostKeys::No), own;
    /// `VerifyHostKeyDNS` as printed; `None` for no.
    verify_host_key_dns: Option<String> = "verifyhostkeydns" => f.unless_no(k),
        only_ssh("host keys from DNS (SSHFP) are looked up by ssh only");
    /// `FingerprintHash`.
    fingerprint_hash: FingerprintHash = "fingerprinthash" => f.word(k, FingerprintHash::parse, FingerprintHash::Sha256), own,
        only_ssh_where("MD5 fingerprints are shown by ssh only");
    /// `VisualHostKey`.
    visual_host_key: bool = "visualhostkey" => f.flag(k, false), own;

    // Authenticating the user.

    /// `IdentityFile`.
    identity_files: Vec<IdentityFile> = "identityfile" => readers::identity_files(f, k, tokens)?;
    /// `CertificateFile`.
    certificate_files: Vec<PathBuf> = "certificatefile" => readers::certificate_files(f, k, tokens)?;
    /// `IdentitiesOnly`.
    identities_only: bool = "identitiesonly" => f.flag(k, false);
    /// The agent's socket: `IdentityAgent`, or the caller's `SSH_AUTH_SOCK`. `None` for no agent.
    identity_agent: Option<PathBuf> = "identityagent" => readers::identity_agent(f, k, around.world);
    /// `AddKeysToAgent`.
    add_keys_to_agent: AddKeysToAgent = "addkeystoagent" => f.word(k, AddKeysToAgent::parse, AddKeysToAgent::default()), own;
    /// `ForwardAgent`: sshd gives every session of a connection the first one's agent. Without an agent there is none
    /// to forward (ssh.c, `check_agent_present`).
    forward_agent: ForwardAgent = "forwardagent" => match readers::forward_agent(f, k, around.world) {
        ForwardAgent::Yes if identity_agent.is_none() => ForwardAgent::No,
        forward => forward,
    };
    /// `PKCS11Provider`.
    pkcs11_provider: Option<String> = "pkcs11provider" => f.text(k), only_ssh("keys in PKCS#11 tokens are used through ssh only");
    /// `SecurityKeyProvider` other than the built-in one.
    security_key_provider: Option<String> = "securitykeyprovider" => readers::security_key_provider(f, k, around.world),
        only_ssh_where("security keys with their own middleware need ssh");
    /// `PreferredAuthentications`, best first; empty for the default order.
    preferred_authentications: NameList = "preferredauthentications" => f.names(k), log_in,
        only_ssh_where("only GSSAPI may authenticate, which is done by ssh only");
    /// `PubkeyAuthentication`.
    pubkey_authentication: PubkeyAuthentication = "pubkeyauthentication" =>
        f.word(k, PubkeyAuthentication::parse, PubkeyAuthentication::Yes), log_in;
    /// `PasswordAuthentication`.
    password_authentication: bool = "passwordauthentication" => f.flag(k, true), log_in;
    /// `KbdInteractiveAuthentication`. The name before OpenSSH 8.7 only matters if it is set to no.
    kbd_interactive_authentication: bool = "kbdinteractiveauthentication" =>
        f.flag(k, true) && f.flag("challengeresponseauthentication", true), log_in;
    /// `KbdInteractiveDevices`.
    kbd_interactive_devices: Option<String> = "kbdinteractivedevices" => f.name(k);
    /// `HostbasedAuthentication`.
    hostbased_authentication: bool = "hostbasedauthentication" => f.flag(k, false),
        only_ssh("host-based authentication needs ssh and ssh-keysign");
    /// `GSSAPIAuthentication`; requires the system's ssh only if no other method may be tried.
    gssapi_authentication: bool = "gssapiauthentication" => f.flag(k, false);
    /// `GSSAPIKeyExchange`.
    gssapi_key_exchange: bool = "gssapikeyexchange" => f.flag(k, false),
        only_ssh("key exchange through Kerberos is done by ssh only");
    /// `NumberOfPasswordPrompts`.
    number_of_password_prompts: u32 = "numberofpasswordprompts" => f.number(k, 3), own;
    /// `BatchMode`.
    batch_mode: bool = "batchmode" => f.flag(k, false), own;

    // Sharing, as in ssh.

    /// `ControlMaster`.
    control_master: ControlMaster = "controlmaster" => f.word(k, ControlMaster::parse, ControlMaster::No), own;
    /// `ControlPath`.
    control_path: Option<PathBuf> = "controlpath" => f.text(k).map(|path| around.absolute(&path)), own;
    /// `ControlPersist`.
    control_persist: ControlPersist = "controlpersist" => f.word(k, ControlPersist::parse, ControlPersist::No), own;

    // Sessions.

    /// `RemoteCommand`.
    remote_command: Option<String> = "remotecommand" => f.text(k), own;
    /// `PermitLocalCommand`: for `LocalCommand`, and for `!` in the command line of the escape sequence.
    permit_local_command: bool = "permitlocalcommand" => f.flag(k, false), own;
    /// `LocalCommand`, if `PermitLocalCommand` allows it.
    local_command: Option<LocalCommand> = "localcommand" => readers::local_command(f, k, tokens, permit_local_command)?, own,
        only_ssh("a command on this side after connecting is run by ssh and trunkline ssh only");
    /// `RequestTTY`.
    request_tty: RequestTty = "requesttty" => f.word(k, RequestTty::parse, RequestTty::Auto), own;
    /// `SessionType`.
    session_type: SessionType = "sessiontype" => f.word(k, SessionType::parse, SessionType::Default), own;
    /// `StdinNull`.
    stdin_null: bool = "stdinnull" => f.flag(k, false), own;
    /// `ForkAfterAuthentication`.
    fork_after_authentication: bool = "forkafterauthentication" => f.flag(k, false), own;
    /// `SendEnv`: patterns of names.
    send_env: Vec<String> = "sendenv" => f.all(k, |value| Some(value.to_owned())), own;
    /// `SetEnv`: names and values.
    set_env: Vec<(String, String)> = "setenv" => f.all(k, |value| {
        let (name, value) = value.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    }), own;
    /// `EscapeChar`; `None` for none.
    escape_char: Option<u8> = "escapechar" => f.word(k, values::escape_char, Some(b'~')), own;
    /// `EnableEscapeCommandline`.
    enable_escape_commandline: bool = "enableescapecommandline" => f.flag(k, false), own;
    /// `ObscureKeystrokeTiming` (OpenSSH 9.5): the interval between packets; `None` if it is off or unknown.
    obscure_keystroke_timing: Option<Duration> = "obscurekeystroketiming" => f.parse(k, readers::keystroke_interval).flatten(),
        own_but_for_masters;
    /// `ChannelTimeout` (OpenSSH 9.6): channel types (or "global") and how long each may be idle.
    channel_timeouts: Vec<(String, Duration)> = "channeltimeout" => f.parse(k, readers::channel_timeouts).unwrap_or_default(),
        own_but_for_masters;

    // Forwarding.

    /// `LocalForward`.
    local_forwards: Vec<Forward> = "localforward" => f.all(k, Forward::parse), own;
    /// `RemoteForward`.
    remote_forwards: Vec<Forward> = "remoteforward" => f.all(k, Forward::parse), own;
    /// `DynamicForward`.
    dynamic_forwards: Vec<Listen> = "dynamicforward" => readers::dynamic_forwards(f, k, &local_forwards), own;
    /// `GatewayPorts`.
    gateway_ports: bool = "gatewayports" => f.flag(k, false), own_but_for_masters;
    /// `ExitOnForwardFailure`.
    exit_on_forward_failure: bool = "exitonforwardfailure" => f.flag(k, false), own;
    /// `ClearAllForwardings`, which `ssh -G` has already applied.
    clear_all_forwardings: bool = "clearallforwardings" => f.flag(k, false), own;
    /// `PermitRemoteOpen`.
    permit_remote_open: PermitRemoteOpen = "permitremoteopen" =>
        f.word(k, |value| Some(PermitRemoteOpen::parse(value)), PermitRemoteOpen::Any), own_but_for_masters;
    /// `StreamLocalBindMask`: the mask for sockets that forwardings create.
    stream_local_bind_mask: u32 = "streamlocalbindmask" => f.word(k, |value| u32::from_str_radix(value, 8).ok(), 0o177),
        own_but_for_masters;
    /// `StreamLocalBindUnlink`.
    stream_local_bind_unlink: bool = "streamlocalbindunlink" => f.flag(k, false), own_but_for_masters;
    /// `ForwardX11`.
    forward_x11: bool = "forwardx11" => f.flag(k, false), own, only_ssh("X11 forwarding is done by ssh only");
    /// `Tunnel` as printed; `None` for no.
    tunnel: Option<String> = "tunnel" => f.unless_no(k), own_but_for_masters,
        only_ssh("network tunnels (tun and tap devices) are opened by ssh only");

    /// `LogLevel`.
    log_level: LogLevel = "loglevel" => f.word(k, LogLevel::parse, LogLevel::Info), own;

    without a field:

    // Inputs of the others, and the target.
    "host", share;
    "hostname", share;
    "port", share;
    "proxyjump", share;
    "user", share;
    // Trust in X11 windows (mux.c, `mux_session_confirm`).
    "forwardx11trusted", of_masters;
    "forwardx11timeout", of_masters;
    "xauthlocation", of_masters;
    "tunneldevice", of_masters;
    // The log-in of a master.
    "enablesshkeysign", of_masters;
    "hostbasedacceptedalgorithms", of_masters;
    "hostbasedkeytypes", of_masters;
    "gssapiclientidentity", of_masters;
    "gssapidelegatecredentials", of_masters;
    "gssapikexalgorithms", of_masters;
    "gssapirenewalforcesrekey", of_masters;
    "gssapiserveridentity", of_masters;
    "gssapitrustdns", of_masters;
    "canonicaldomains", irrelevant("ssh -G has already made the host name canonical");
    "canonicalizefallbacklocal", irrelevant("ssh -G has already made the host name canonical");
    "canonicalizehostname", irrelevant("ssh -G has already made the host name canonical");
    "canonicalizemaxdots", irrelevant("ssh -G has already made the host name canonical");
    "canonicalizepermittedcnames", irrelevant("ssh -G has already made the host name canonical");
    "ignoreunknown", irrelevant("ssh -G has already ignored what it names");
    "logverbose", irrelevant("selects debug messages of ssh's own source files");
    "syslogfacility", irrelevant("ssh uses it with -y only; the engine logs through tracing");
    "tag", irrelevant("read by Match tagged, which ssh -G has evaluated");
}

impl Row {
    /// Returns the directive with this name, in lower case.
    pub(super) fn by_name(keyword: &str) -> Option<&'static Self> {
        DIRECTIVES.iter().find(|row| row.keyword == keyword)
    }
}

#[cfg(test)]
mod tests {
    use super::super::host::tests::config_of;
    use super::*;

    /// Values of which at least one is not the default of each directive.
    const VALUES: &[&str] = &[
        "yes",
        "no",
        "7",
        "/x",
        "aes128-ctr,x",
        "inet6",
        "accept-new",
        "ask",
        "force",
        "none",
        "QUIET",
        "MD5",
        "0111",
        "A=1",
        "session=5m",
        "[a]:1 [b]:2",
        "9 [h]:2",
        "1 10",
        "af21 cs1",
        "host:5",
    ];

    fn with_line(line: &str) -> HostConfig {
        // An agent that can be forwarded, and a command that may run.
        config_of(&format!(
            "host h\nhostname h\nuser u\nport 22\n{line}\npermitlocalcommand yes\nidentityagent /agent\n"
        ))
    }

    #[test]
    fn a_directive_is_to_sharing_what_its_row_says_and_keeps_apart_where_it_says_nothing() {
        let usual = with_line("");
        let key = usual.sharing_key();
        let shown = |config: &HostConfig, row: &Row| config.value_of(row.keyword).map(Shown::show);
        for row in DIRECTIVES.iter().filter(|row| shown(&usual, row).is_some()) {
            let others = VALUES
                .iter()
                .map(|value| with_line(&format!("{} {value}", row.keyword)));
            let differing: Vec<_> = others
                .filter(|other| shown(other, row) != shown(&usual, row))
                .collect();
            assert!(!differing.is_empty(), "no value changes {}", row.keyword);
            for other in differing {
                let (other, keyword) = (other.sharing_key(), row.keyword);
                let expected = match row.role {
                    Role::Shared => (false, false),
                    Role::LogIn => (true, false),
                    Role::Own => (true, true),
                    Role::Master | Role::Irrelevant(_) => panic!("{keyword} has a field"),
                };
                assert_eq!((key.may_meet(&other), key == other), expected, "{keyword}");
            }
        }
        assert_eq!(Row::new("new").role, Role::Shared);
    }

    #[test]
    fn every_directive_that_can_be_typed_has_a_row_and_each_row_once() {
        for directive in trunkline_request::ssh_options::DIRECTIVES {
            let keyword = directive.name.to_ascii_lowercase();
            let rows = DIRECTIVES.iter().filter(|row| row.keyword == keyword).count();
            assert_eq!(rows, 1, "{keyword}");
        }
        // ssh's own argument, and an obsolete name.
        let beside = ["host", "hostbasedkeytypes"];
        assert_eq!(
            DIRECTIVES.len(),
            trunkline_request::ssh_options::DIRECTIVES.len() + beside.len()
        );
    }

    /// Returns the guide's table: the directives by role, with the names of ssh_config(5).
    fn table() -> String {
        let name = |row: &&Row| {
            let known = trunkline_request::ssh_options::Directive::by_name(row.keyword);
            known.map(|known| format!("`{}`", known.name))
        };
        let line = |what: &str, role: fn(&Row) -> bool| {
            let mut names: Vec<_> = DIRECTIVES
                .iter()
                .filter(|row| role(row))
                .filter_map(|row| name(&row))
                .collect();
            names.sort_by_key(|name| name.to_ascii_lowercase());
            format!("| {what} | {} |\n", names.join(", "))
        };
        let mut table = String::from("| what it is | directives |\n|---|---|\n");
        table += &line("has to be equal", |row| row.role == Role::Shared);
        table += &line("the connection must have been logged in to as it allows", |row| {
            row.role == Role::LogIn
        });
        table += &line("applies to the request that brings it", |row| {
            row.role == Role::Own
        });
        table += &line(
            "has to be equal where the system's ssh is the connection",
            |row| row.is_fixed_by_master,
        );
        table += &line("decides nothing by itself", |row| {
            matches!(row.role, Role::Irrelevant(_))
        });
        table += &line("leaves the host to the system's ssh, if it is set", |row| {
            row.only_ssh.is_some_and(|only_ssh| !only_ssh.depends)
        });
        table += &line("does so with some values", |row| {
            row.only_ssh.is_some_and(|only_ssh| only_ssh.depends)
        });
        table
    }

    #[test]
    fn the_guide_has_the_same_table() {
        let guide = include_str!("../../../../docs/guide/troubleshooting.md");
        assert!(guide.contains(&table()), "{}", table());
    }
}
