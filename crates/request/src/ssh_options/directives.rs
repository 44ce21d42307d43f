//! The directives of ssh_config(5), as `-o` takes them, and their values.

use Values::{Any, Host, List, Path, Query, Words};

/// A directive.
#[derive(Debug, PartialEq, Eq)]
pub struct Directive {
    /// The name as in ssh_config(5).
    pub name: &'static str,
    /// Its possible values.
    pub values: Values,
}

/// The possible values of a directive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// A number, a time, a text.
    Any,
    /// One of some words. Other values, such as a time or a path, may be allowed, too.
    Words(&'static [&'static str]),
    /// A comma-separated list of some words.
    List(&'static [&'static str]),
    /// A list of the names that `ssh -Q` prints for this.
    Query(&'static str),
    /// A local path.
    Path,
    /// A list of hosts.
    Host,
}

const YES_NO: Values = Words(&["yes", "no"]);
const YES_NO_ASK: Values = Words(&["yes", "no", "ask"]);
const QOS: Values = Words(&[
    "af11",
    "af12",
    "af13",
    "af21",
    "af22",
    "af23",
    "af31",
    "af32",
    "af33",
    "af41",
    "af42",
    "af43",
    "cs0",
    "cs1",
    "cs2",
    "cs3",
    "cs4",
    "cs5",
    "cs6",
    "cs7",
    "ef",
    "le",
    "lowdelay",
    "throughput",
    "reliability",
    "none",
]);

/// Every directive of OpenSSH 9.2 to 10.2 and of Debian's patches, except for `Host`, `Match` and `Include`.
#[rustfmt::skip]
pub const DIRECTIVES: &[Directive] = &[
    directive("AddKeysToAgent", Words(&["yes", "no", "ask", "confirm"])),
    directive("AddressFamily", Words(&["any", "inet", "inet6"])),
    directive("BatchMode", YES_NO),
    directive("BindAddress", Any),
    directive("BindInterface", Any),
    directive("CanonicalDomains", Any),
    directive("CanonicalizeFallbackLocal", YES_NO),
    directive("CanonicalizeHostname", Words(&["yes", "no", "always"])),
    directive("CanonicalizeMaxDots", Any),
    directive("CanonicalizePermittedCNAMEs", Any),
    directive("CASignatureAlgorithms", Query("sig")),
    directive("CertificateFile", Path),
    directive("ChannelTimeout", Any),
    directive("CheckHostIP", YES_NO),
    directive("Ciphers", Query("cipher")),
    directive("ClearAllForwardings", YES_NO),
    directive("Compression", YES_NO),
    directive("ConnectionAttempts", Any),
    directive("ConnectTimeout", Any),
    directive("ControlMaster", Words(&["yes", "no", "ask", "auto", "autoask"])),
    directive("ControlPath", Path),
    directive("ControlPersist", YES_NO),
    directive("DynamicForward", Any),
    directive("EnableEscapeCommandline", YES_NO),
    directive("EnableSSHKeysign", YES_NO),
    directive("EscapeChar", Words(&["none"])),
    directive("ExitOnForwardFailure", YES_NO),
    directive("FingerprintHash", Words(&["md5", "sha256"])),
    directive("ForkAfterAuthentication", YES_NO),
    directive("ForwardAgent", YES_NO),
    directive("ForwardX11", YES_NO),
    directive("ForwardX11Timeout", Any),
    directive("ForwardX11Trusted", YES_NO),
    directive("GatewayPorts", YES_NO),
    directive("GlobalKnownHostsFile", Path),
    directive("GSSAPIAuthentication", YES_NO),
    directive("GSSAPIClientIdentity", Any),
    directive("GSSAPIDelegateCredentials", YES_NO),
    directive("GSSAPIKexAlgorithms", Query("kex-gss")),
    directive("GSSAPIKeyExchange", YES_NO),
    directive("GSSAPIRenewalForcesRekey", YES_NO),
    directive("GSSAPIServerIdentity", Any),
    directive("GSSAPITrustDns", YES_NO),
    directive("HashKnownHosts", YES_NO),
    directive("HostbasedAcceptedAlgorithms", Query("HostbasedAcceptedAlgorithms")),
    directive("HostbasedAuthentication", YES_NO),
    directive("HostKeyAlgorithms", Query("HostKeyAlgorithms")),
    directive("HostKeyAlias", Any),
    directive("Hostname", Host),
    directive("IdentitiesOnly", YES_NO),
    directive("IdentityAgent", Path),
    directive("IdentityFile", Path),
    directive("IgnoreUnknown", Any),
    directive("IPQoS", QOS),
    directive("KbdInteractiveAuthentication", YES_NO),
    directive("KbdInteractiveDevices", Any),
    directive("KexAlgorithms", Query("kex")),
    directive("KnownHostsCommand", Any),
    directive("LocalCommand", Any),
    directive("LocalForward", Any),
    directive("LogLevel", Words(&["QUIET", "FATAL", "ERROR", "INFO", "VERBOSE", "DEBUG", "DEBUG1", "DEBUG2", "DEBUG3"])),
    directive("LogVerbose", Any),
    directive("MACs", Query("mac")),
    directive("NoHostAuthenticationForLocalhost", YES_NO),
    directive("NumberOfPasswordPrompts", Any),
    directive("ObscureKeystrokeTiming", YES_NO),
    directive("PasswordAuthentication", YES_NO),
    directive("PermitLocalCommand", YES_NO),
    directive("PermitRemoteOpen", Words(&["any", "none"])),
    directive("PKCS11Provider", Path),
    directive("Port", Any),
    directive("PreferredAuthentications", List(&["gssapi-with-mic", "hostbased", "publickey", "keyboard-interactive", "password"])),
    directive("ProxyCommand", Any),
    directive("ProxyJump", Host),
    directive("ProxyUseFdpass", YES_NO),
    directive("PubkeyAcceptedAlgorithms", Query("PubkeyAcceptedAlgorithms")),
    directive("PubkeyAuthentication", Words(&["yes", "no", "unbound", "host-bound"])),
    directive("RefuseConnection", Any),
    directive("RekeyLimit", Any),
    directive("RemoteCommand", Any),
    directive("RemoteForward", Any),
    directive("RequestTTY", Words(&["yes", "no", "force", "auto"])),
    directive("RequiredRSASize", Any),
    directive("RevokedHostKeys", Path),
    directive("SecurityKeyProvider", Path),
    directive("SendEnv", Any),
    directive("ServerAliveCountMax", Any),
    directive("ServerAliveInterval", Any),
    directive("SessionType", Words(&["none", "subsystem", "default"])),
    directive("SetEnv", Any),
    directive("StdinNull", YES_NO),
    directive("StreamLocalBindMask", Any),
    directive("StreamLocalBindUnlink", YES_NO),
    directive("StrictHostKeyChecking", Words(&["yes", "no", "ask", "off", "accept-new"])),
    directive("SyslogFacility", Words(&["DAEMON", "USER", "AUTH", "LOCAL0", "LOCAL1", "LOCAL2", "LOCAL3", "LOCAL4", "LOCAL5", "LOCAL6", "LOCAL7"])),
    directive("Tag", Any),
    directive("TCPKeepAlive", YES_NO),
    directive("Tunnel", Words(&["yes", "no", "point-to-point", "ethernet"])),
    directive("TunnelDevice", Any),
    directive("UpdateHostKeys", YES_NO_ASK),
    directive("User", Any),
    directive("UserKnownHostsFile", Path),
    directive("VerifyHostKeyDNS", YES_NO_ASK),
    directive("VersionAddendum", Any),
    directive("VisualHostKey", YES_NO),
    directive("WarnWeakCrypto", YES_NO),
    directive("XAuthLocation", Path),
];

const fn directive(name: &'static str, values: Values) -> Directive {
    Directive { name, values }
}

impl Directive {
    /// Finds a directive by its name, ignoring case.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Self> {
        DIRECTIVES
            .iter()
            .find(|directive| directive.name.eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::super::SSH_OPTIONS;
    use super::*;
    use std::process::Command;

    #[test]
    fn what_options_set_and_what_ssh_prints_is_listed() {
        for option in SSH_OPTIONS {
            if let Some(directive) = option.directive {
                assert!(Directive::by_name(directive).is_some(), "{directive}");
            }
        }
        let printed = Command::new("ssh").args(["-G", "-F", "none", "host"]).output();
        let printed = String::from_utf8(printed.expect("ssh is installed").stdout).expect("text");
        for line in printed.lines() {
            let keyword = line.split(' ').next().unwrap_or_default();
            // The command's own argument.
            assert!(
                keyword == "host" || Directive::by_name(keyword).is_some(),
                "{line}"
            );
        }
    }

    #[test]
    fn ssh_takes_each_fixed_value() {
        // The installed ssh may be too old for these.
        let newer = [
            "ChannelTimeout",
            "ObscureKeystrokeTiming",
            "RefuseConnection",
            "Tag",
            "VersionAddendum",
            "WarnWeakCrypto",
        ];
        for Directive { name, values } in DIRECTIVES {
            let (Words(words) | List(words)) = values else {
                continue;
            };
            // An ssh that was built without them ignores them with a message, or refuses them.
            if newer.contains(name) || name.starts_with("GSSAPI") {
                continue;
            }
            for word in *words {
                let option = format!("{name}={word}");
                let run = Command::new("ssh")
                    .args(["-G", "-F", "none", "-o", &option, "host", "true"])
                    .output();
                let run = run.expect("ssh is installed");
                assert!(
                    run.status.success(),
                    "{option}: {}",
                    String::from_utf8_lossy(&run.stderr)
                );
            }
        }
    }
}
