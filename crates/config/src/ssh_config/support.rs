//! The features that the engine lacks, and therefore leaves to the system's `ssh`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use trunkline_proto::cipher::Cipher;
use trunkline_proto::kex::KexMethod;
use trunkline_proto::mac::Mac;
use trunkline_proto::{AlgorithmKind, HOST_KEY_ALGORITHMS};

use super::directives::OnlySsh;
use super::values::FingerprintHash;
use super::{DIRECTIVES, Directive, HostConfig, Row};
use crate::keys::{KeyFile, public_key_algorithms};

/// A directive because of which a host is left to the system's `ssh`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The directive, in lower case.
    pub directive: String,
    /// Its value, as `ssh -G` prints it.
    pub value: String,
    /// A sentence for the user.
    pub why: String,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.directive, self.value, self.why)
    }
}

/// The first bytes of a binary key revocation list (OpenSSH's PROTOCOL.krl, section 1).
const KRL_MAGIC: &[u8] = b"SSHKRL\n\0";

/// A kind of negotiated algorithm.
struct Kind {
    kind: AlgorithmKind,
    configured: fn(&HostConfig) -> &[String],
    /// Returns whether the engine has the algorithm.
    has: fn(&str) -> bool,
}

const KEX: Kind = Kind {
    kind: AlgorithmKind::Kex,
    configured: |host| &host.kex_algorithms,
    has: |name| KexMethod::from_name(name).is_some(),
};
const HOST_KEYS: Kind = Kind {
    kind: AlgorithmKind::HostKey,
    configured: |host| &host.host_key_algorithms,
    has: |name| HOST_KEY_ALGORITHMS.contains(&name),
};
const CIPHERS: Kind = Kind {
    kind: AlgorithmKind::Cipher,
    configured: |host| &host.ciphers,
    has: |name| Cipher::from_name(name).is_some(),
};
const MACS: Kind = Kind {
    kind: AlgorithmKind::Mac,
    configured: |host| &host.macs,
    has: |name| Mac::from_name(name).is_some(),
};

impl Reason {
    fn new(directive: &str, value: String, why: &str) -> Self {
        Self {
            directive: directive.into(),
            value,
            why: why.into(),
        }
    }
}

impl HostConfig {
    /// Returns whether the configuration allows one of the server's algorithms that the engine lacks. `theirs` are the
    /// server's names of this kind, comma-separated.
    pub fn only_ssh_could(&self, kind: AlgorithmKind, theirs: &str) -> bool {
        let kinds = [KEX, HOST_KEYS, CIPHERS, MACS];
        kinds.iter().filter(|known| known.kind == kind).any(|known| {
            (known.configured)(self)
                .iter()
                .any(|name| !(known.has)(name) && theirs.split(',').any(|offered| offered == name))
        })
    }

    /// Returns the configured names of a kind, if the engine supports none of them.
    fn foreign(&self, kind: &Kind) -> Option<String> {
        let configured = (kind.configured)(self);
        let has_none = !configured.is_empty() && !configured.iter().any(|name| (kind.has)(name));
        has_none.then(|| configured.join(","))
    }

    /// Returns whether the configuration allows more ways to open a connection (key exchange, host keys) than the
    /// engine has, as for a server with nothing newer than SHA-1. ssh's own defaults do not.
    pub fn allows_older(&self) -> bool {
        [KEX, HOST_KEYS]
            .iter()
            .any(|kind| (kind.configured)(self).iter().any(|name| !(kind.has)(name)))
    }

    /// Returns whether the configuration allows algorithms of any kind that the engine lacks.
    pub fn allows_others(&self) -> bool {
        [KEX, HOST_KEYS, CIPHERS, MACS]
            .iter()
            .any(|kind| (kind.configured)(self).iter().any(|name| !(kind.has)(name)))
    }

    /// Returns why only ssh can log in with the key in `file`, as a sentence, if the configuration allows that; `None`
    /// for a key that the engine supports or ssh would not use.
    pub fn only_ssh_signs_with(&self, file: &KeyFile) -> Option<String> {
        let what = file.only_ssh_signs()?;
        let public = file.public_key()?;
        let long_enough = match trunkline_proto::signature::rsa_bits(&public.blob) {
            Ok(Some(bits)) => bits >= self.required_rsa_size as usize,
            _ => true,
        };
        let allowed = self.accepts_key_type(&public.algorithm)
            || public_key_algorithms(&public.algorithm)
                .into_iter()
                .any(|algorithm| self.accepts_key_type(algorithm));
        (long_enough && allowed).then(|| format!("{} is {what}", file.path().display()))
    }

    /// Returns whether RSA keys (or, for their type, certificates for them) may sign with SHA-1, as ssh does if the
    /// server does not announce better algorithms (sshconnect2.c, `key_sig_algorithm`). The engine never does.
    pub fn allows_sha1_for(&self, key_type: &str) -> bool {
        key_type.starts_with("ssh-rsa") && self.accepts_key_type(key_type)
    }

    /// Returns whether only ssh may be able to log in: SHA-1 is allowed, or the engine cannot sign with a key file.
    /// Reads the key files.
    pub fn may_need_ssh_to_log_in(&self) -> bool {
        let files = self.identity_files.iter().map(|file| KeyFile::open(&file.path));
        self.allows_sha1_for("ssh-rsa")
            || self.allows_sha1_for("ssh-rsa-cert-v01@openssh.com")
            || files
                .flatten()
                .any(|file| self.only_ssh_signs_with(&file).is_some())
    }

    /// Returns whether PubkeyAcceptedAlgorithms includes the name.
    pub fn accepts_key_type(&self, algorithm: &str) -> bool {
        self.pubkey_accepted_algorithms
            .iter()
            .any(|accepted| accepted == algorithm)
    }

    /// Returns why this host must be reached through the system's `ssh`; empty if the engine can do everything
    /// requested.
    ///
    /// Reads the first bytes of the `RevokedHostKeys` file, if there is one.
    #[must_use]
    pub fn needs_system_ssh(&self) -> Vec<Reason> {
        let of_row = |row: &Row| {
            let OnlySsh { why, depends } = row.only_ssh?;
            let value = match depends {
                true => self.value_for_ssh(row.keyword)?,
                false => self.value_if_set(row.keyword)?,
            };
            Some(Reason::new(row.keyword, value, why))
        };
        let of_lines = [
            (&self.not_understood, "unknown value"),
            (
                &self.ambiguous,
                "only ssh knows what this means beside another one, which it does not print",
            ),
            (&self.unknown, "unknown directive"),
        ];
        let of_line = |(lines, why): (&Vec<Directive>, &'static str)| {
            let reason = |line: &Directive| Reason::new(&line.keyword, line.value.clone(), why);
            lines.iter().map(reason).collect::<Vec<_>>()
        };
        let reasons = DIRECTIVES.iter().filter_map(of_row);
        reasons.chain(of_lines.into_iter().flat_map(of_line)).collect()
    }

    fn value_if_set(&self, keyword: &str) -> Option<String> {
        let value = self.value_of(keyword).filter(|value| value.is_set())?;
        Some(value.show())
    }

    /// Returns the value of a directive, if only ssh can handle it.
    fn value_for_ssh(&self, keyword: &str) -> Option<String> {
        match keyword {
            "kexalgorithms" => self.foreign(&KEX),
            "hostkeyalgorithms" => self.foreign(&HOST_KEYS),
            "ciphers" => self.foreign(&CIPHERS),
            "macs" => {
                // An AEAD cipher takes no MAC.
                let is_aead = |name: &String| Cipher::from_name(name).is_some_and(Cipher::is_aead);
                self.foreign(&MACS).filter(|_| !self.ciphers.iter().any(is_aead))
            }
            "securitykeyprovider" => {
                // The agent has its own provider.
                let mut files = self.identity_files.iter().map(|file| KeyFile::open(&file.path));
                let mut has_one = || files.any(|file| file.is_ok_and(|key| key.is_security_key()));
                self.security_key_provider.clone().filter(|_| has_one())
            }
            "revokedhostkeys" => {
                let file = self
                    .revoked_host_keys
                    .as_ref()
                    .filter(|file| is_binary_list(file))?;
                Some(file.display().to_string())
            }
            "fingerprinthash" => (self.fingerprint_hash == FingerprintHash::Md5).then(|| "MD5".into()),
            "preferredauthentications" => {
                // Merely enabled GSSAPI is not a reason, since distributions enable it for every host; GSSAPI as the
                // only allowed method is.
                let methods = &self.preferred_authentications;
                let is_alone = self.gssapi_authentication
                    && !methods.is_empty()
                    && methods.iter().all(|method| method.starts_with("gssapi-"));
                is_alone.then(|| methods.join(","))
            }
            _ => self.value_if_set(keyword),
        }
    }
}

/// Returns whether a file is a key revocation list in OpenSSH's binary format (PROTOCOL.krl), by its first bytes.
fn is_binary_list(file: &Path) -> bool {
    let mut start = [0; KRL_MAGIC.len()];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == KRL_MAGIC
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use trunkline_proto::wire::Writer;

    use super::super::host::tests::{config_of, printed_by_ssh};
    use super::{HostConfig, KeyFile};

    /// The lines that OpenSSH 9.2 to 10.x, Debian and Fedora print beyond the installed version, with harmless values.
    const OTHER_VERSIONS: &str = "channeltimeout none\nobscurekeystroketiming yes\ntag web\nversionaddendum none\n\
        refuseconnection none\nwarnweakcrypto yes\ngssapikexalgorithms gss-group14-sha256-\ngssapikeyexchange no\n\
        gssapiclientidentity x\ngssapiserveridentity x\ngssapitrustdns no\ngssapirenewalforcesrekey no\n\
        gssapidelegatecredentials no\ngssapiauthentication yes\nkbdinteractivedevices pam\nlogverbose none\n\
        canonicalizepermittedcnames none\nignoreunknown x\nhostbasedkeytypes ssh-rsa\n\
        challengeresponseauthentication yes\npubkeyacceptedkeytypes ssh-ed25519\n";

    #[test]
    fn a_local_command_that_may_run_needs_ssh() {
        let lines = "host h\nhostname h\nuser u\nport 22\nlocalcommand date\n";
        assert_eq!(config_of(lines).needs_system_ssh(), []);
        let permitted = config_of(&format!("{lines}permitlocalcommand yes\n"));
        assert_eq!(permitted.needs_system_ssh()[0].directive, "localcommand");
    }

    #[test]
    fn no_directive_that_a_default_ssh_prints_is_ignored_or_needs_ssh() {
        let printed = format!("{}{OTHER_VERSIONS}", printed_by_ssh(&[], "h"));
        let config = config_of(&printed);
        assert_eq!(config.unknown, []);
        assert_eq!(config.not_understood, []);
        assert_eq!(config.needs_system_ssh(), []);
    }

    #[test]
    fn every_directive_that_ssh_can_print_is_a_field_or_a_reason_or_listed() {
        // One of each that the defaults leave out.
        let options = [
            "BindAddress=127.0.0.1",
            "BindInterface=lo",
            "CertificateFile=/c",
            "ControlPath=/s",
            "HostKeyAlias=a",
            "IdentityAgent=/a",
            "IgnoreUnknown=x",
            "KbdInteractiveDevices=pam",
            "KnownHostsCommand=/bin/true",
            "LocalCommand=true",
            "RemoteCommand=true",
            "PKCS11Provider=/p",
            "PreferredAuthentications=publickey",
            "RevokedHostKeys=/r",
            "SendEnv=A",
            "SetEnv=A=1",
            "LocalForward=1 h:2",
            "RemoteForward=1 h:2",
            "DynamicForward=1",
            "ProxyCommand=true",
            "Tunnel=yes",
            "ForwardX11=yes",
        ];
        let options: Vec<String> = options.iter().map(|option| format!("-o{option}")).collect();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let config = config_of(&printed_by_ssh(&options, "h"));
        assert_eq!(config.unknown, []);
        assert_eq!(config.not_understood, []);
        let reasons = config.needs_system_ssh();
        let reasons: BTreeSet<_> = reasons.iter().map(|reason| reason.directive.as_str()).collect();
        assert_eq!(
            reasons,
            BTreeSet::from(["forwardx11", "knownhostscommand", "pkcs11provider", "tunnel"])
        );
    }

    #[test]
    fn what_the_engine_cannot_do_names_its_directive() {
        for (line, directive) in [
            ("hostbasedauthentication yes", "hostbasedauthentication"),
            ("verifyhostkeydns ask", "verifyhostkeydns"),
            ("verifyhostkeydns true", "verifyhostkeydns"),
            ("proxyusefdpass yes", "proxyusefdpass"),
            ("ciphers aes128-ctr\nmacs hmac-md5", "macs"),
            ("gssapikeyexchange yes", "gssapikeyexchange"),
            (
                "gssapiauthentication yes\npreferredauthentications gssapi-with-mic,gssapi-keyex",
                "preferredauthentications",
            ),
            ("fingerprinthash MD5", "fingerprinthash"),
            ("versionaddendum example", "versionaddendum"),
            ("teleport yes", "teleport"),
            ("addressfamily inet7", "addressfamily"),
        ] {
            let reasons =
                config_of(&format!("host h\nhostname h\nuser u\nport 22\n{line}\n")).needs_system_ssh();
            let named: Vec<_> = reasons.iter().map(|reason| reason.directive.as_str()).collect();
            assert_eq!(named, [directive], "{line}");
        }
    }

    #[test]
    fn a_security_key_provider_counts_where_there_is_such_a_key() {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("sk");
        let lines = format!(
            "host h\nhostname h\nuser u\nport 22\nsecuritykeyprovider /usr/lib/sk.so\nidentityfile {}\n",
            key.display()
        );
        assert_eq!(config_of(&lines).needs_system_ssh(), []);
        let name = "sk-ssh-ed25519@openssh.com";
        let blob = Writer::new().string(name).string([7; 32]).string("ssh:").finish();
        let line = format!("{name} {}\n", STANDARD.encode(blob));
        std::fs::write(directory.path().join("sk.pub"), line).unwrap();
        let reasons = config_of(&lines).needs_system_ssh();
        assert_eq!(reasons[0].directive, "securitykeyprovider");
        let empty = lines.replace("/usr/lib/sk.so", "$UNSET");
        assert_eq!(config_of(&empty).needs_system_ssh(), []);
    }

    #[test]
    fn macs_do_not_matter_beside_a_cipher_that_takes_none() {
        let lines = "host h\nhostname h\nuser u\nport 22\nmacs hmac-md5\nciphers aes256-gcm@openssh.com\n";
        assert_eq!(config_of(lines).needs_system_ssh(), []);
    }

    #[test]
    fn what_newer_versions_print_is_understood() {
        let config = config_of(
            "host h\nhostname h\nuser u\nport 22\ncompression UNKNOWN\ntcpkeepalive all\nchanneltimeout session=1.5\n\
             revokedhostkeys none\nwarnweakcrypto yes\n",
        );
        assert_eq!(config.needs_system_ssh(), []);
        assert!(config.compression && config.tcp_keep_alive);
        assert_eq!(config.revoked_host_keys, None);
        let timeouts = [("session".to_owned(), std::time::Duration::from_millis(1500))];
        assert_eq!(config.channel_timeouts, timeouts);
    }

    #[test]
    fn only_ssh_signs_with_keys_that_the_engine_lacks_and_the_configuration_allows() {
        let directory = tempfile::tempdir().unwrap();
        let made = |name: &str, arguments: &[&str]| {
            let path = directory.path().join(name);
            let mut keygen = std::process::Command::new("ssh-keygen");
            let ran = keygen
                .args(["-q", "-N", ""])
                .args(arguments)
                .arg("-f")
                .arg(&path)
                .status();
            assert!(ran.expect("this test needs ssh-keygen").success());
            KeyFile::open(&path).unwrap()
        };
        let config = |lines: &str| {
            config_of(&format!(
                "host h\nhostname h\nuser u\nport 22\nrequiredrsasize 1024\n\
                 pubkeyacceptedalgorithms ssh-ed25519,rsa-sha2-512,ssh-mldsa44-ed25519\n{lines}"
            ))
        };
        let short = made("short", &["-t", "rsa", "-b", "1024"]);
        assert!(
            config("")
                .only_ssh_signs_with(&short)
                .unwrap()
                .contains("1024 bits")
        );
        let longer = config("").clone();
        assert_eq!(
            HostConfig {
                required_rsa_size: 2048,
                ..longer
            }
            .only_ssh_signs_with(&short),
            None,
            "nor does ssh"
        );
        assert_eq!(
            config("").only_ssh_signs_with(&made("usual", &["-t", "ed25519"])),
            None
        );

        // A type that the installed version may not know: its public half suffices.
        let path = directory.path().join("usual");
        let key = |name: &str| {
            let blob = Writer::new().string(name).string([7; 1344]).finish();
            std::fs::write(
                path.with_extension("pub"),
                format!("{name} {}\n", STANDARD.encode(blob)),
            )
            .unwrap();
            KeyFile::open(&path).unwrap()
        };
        let newer = key("ssh-mldsa44-ed25519");
        assert!(config("").only_ssh_signs_with(&newer).is_some());
        assert_eq!(
            config("").only_ssh_signs_with(&key("ssh-other")),
            None,
            "nor does ssh"
        );
        let asks = config(&format!("identityfile {}\n", path.display()));
        assert!(!asks.may_need_ssh_to_log_in());
        key("ssh-mldsa44-ed25519");
        assert!(asks.may_need_ssh_to_log_in());
        assert!(!config("").allows_sha1_for("ssh-rsa") && !config("").may_need_ssh_to_log_in());
    }

    #[test]
    fn enabled_gssapi_beside_other_methods_is_no_reason() {
        let lines = "host h\nhostname h\nuser u\nport 22\ngssapiauthentication yes\n";
        assert_eq!(config_of(lines).needs_system_ssh(), []);
        let preferred = format!("{lines}preferredauthentications gssapi-with-mic,publickey\n");
        assert_eq!(config_of(&preferred).needs_system_ssh(), []);
    }

    #[test]
    fn only_a_binary_revocation_list_needs_ssh() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("revoked");
        let config = || {
            config_of(&format!(
                "host h\nhostname h\nuser u\nport 22\nrevokedhostkeys {}\n",
                file.display()
            ))
        };
        std::fs::write(&file, "ssh-ed25519 AAAA\n").unwrap();
        assert_eq!(config().needs_system_ssh(), []);
        std::fs::write(&file, b"SSHKRL\n\0rest").unwrap();
        assert_eq!(config().needs_system_ssh()[0].directive, "revokedhostkeys");
    }
}
