//! The work that a node accepts, and the submitters that it accepts it from.

use std::fmt::Debug;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use trunkline_request::destination::Destination;
use trunkline_request::hosts::{matches, means_host};

/// The work that a node accepts, and the submitters that it accepts it from. Without a rule, it accepts nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowList {
    /// The rules. One matching rule is enough.
    #[serde(default)]
    pub allow: Vec<Rule>,
    /// Public nkeys of people who may cancel the work of other submitters.
    #[serde(default)]
    pub cancel: Vec<String>,
}

/// The source of a node's allow list.
pub trait AllowSource: Debug + Send + Sync + 'static {
    /// Returns the current list.
    ///
    /// # Errors
    /// The reason why the list cannot be read, as a sentence. Nothing is allowed then.
    fn current(&self) -> Result<Arc<AllowList>, String>;
}

/// A list that never changes.
impl AllowSource for AllowList {
    fn current(&self) -> Result<Arc<AllowList>, String> {
        Ok(Arc::new(self.clone()))
    }
}

/// A list as it was read, or the reason why there is none.
pub(crate) type Allowed = Result<Arc<AllowList>, String>;

/// A permission to run something: the submitters, the users that they may log in as, and the hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Public nkeys (`U…`).
    pub submitters: Vec<String>,
    /// Patterns of host names.
    pub hosts: Vec<String>,
    /// Patterns of users that a job may name. Without any, a job cannot name a user, and the user comes from
    /// ssh_config.
    #[serde(default)]
    pub users: Vec<String>,
    /// Ports that a job may name: there may be another machine behind each port of a host. Without any, a job cannot
    /// name a port, and the port comes from ssh_config.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// Patterns of JetStream subjects that streams may write to. Without any, they cannot write to a subject.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<String>,
}

impl AllowList {
    /// Returns true if the owner of this public nkey may end the work of other submitters.
    pub fn lets_cancel(&self, who: &str) -> bool {
        self.cancel.iter().any(|known| known == who)
    }

    /// Returns the reason why a host is not allowed, if it is not. `subject` is the JetStream subject of the output, if
    /// it has one. A single rule has to allow all of it.
    pub fn refuses(
        &self,
        node: &str,
        submitter: &str,
        destination: &Destination,
        subject: Option<&str>,
    ) -> Option<String> {
        let host = destination.host.to_ascii_lowercase();
        // If this were parsed again, it might name another host, or a user that was not checked against any rule.
        let is_ambiguous = |c: char| "@/".contains(c) || c.is_whitespace() || c.is_control();
        if host.is_empty() || host.contains(is_ambiguous) {
            return Some(format!("node {node} reaches no host of the name {host:?}"));
        }
        let mut rules: Vec<&Rule> = self.allow.iter().collect();
        // The submitter is told the first property that no remaining rule allows.
        let mut narrow = |fits: &dyn Fn(&Rule) -> bool| {
            rules.retain(|rule| fits(rule));
            rules.is_empty()
        };
        if narrow(&|rule| rule.submitters.iter().any(|known| known == submitter)) {
            return Some(format!(
                "node {node} takes nothing from {submitter}: its allow list does not name that submitter"
            ));
        }
        if narrow(&|rule| means_host(&rule.hosts, &host)) {
            return Some(format!(
                "the allow list of node {node} does not let {submitter} reach {host}"
            ));
        }
        let port = destination.port;
        if let Some(port) = port.filter(|port| narrow(&|rule| rule.ports.contains(port))) {
            return Some(format!(
                "the allow list of node {node} does not let {submitter} name port {port} of {host}: see `ports` of the rule for \
                 that host"
            ));
        }
        let user = destination.user.as_deref();
        if let Some(user) = user.filter(|user| narrow(&|rule| fits(&rule.users, user))) {
            return Some(format!(
                "the allow list of node {node} does not let {submitter} be {user} on {host}"
            ));
        }
        let subject = subject.filter(|subject| narrow(&|rule| fits(&rule.subjects, subject)))?;
        let user = user.map(|user| format!(" as {user}")).unwrap_or_default();
        Some(format!(
            "the allow list of node {node} does not let {submitter} write what {host} says{user} to the subject {subject}: see \
             `subjects` of the rule for that host"
        ))
    }
}

fn fits(patterns: &[String], name: &str) -> bool {
    let mut patterns = patterns.iter();
    patterns.any(|pattern| matches(name.as_bytes(), pattern.as_bytes()))
}

/// Returns the reason why a host is not allowed, if it is not.
pub(crate) fn refuses(
    allowed: &Allowed,
    node: &str,
    submitter: &str,
    destination: &Destination,
    subject: Option<&str>,
) -> Option<String> {
    match allowed {
        Ok(list) => list.refuses(node, submitter, destination, subject),
        Err(why) => Some(format!(
            "node {node} allows nothing, because its allow list cannot be read: {why}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(users: &[&str], subjects: &[&str]) -> Rule {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Rule {
            submitters: vec!["UA".into()],
            hosts: vec!["*.Eu".into()],
            users: all(users),
            ports: Vec::new(),
            subjects: all(subjects),
        }
    }

    fn refusal(rules: &[Rule], submitter: &str, host: &str, subject: Option<&str>) -> Option<String> {
        let list = AllowList {
            allow: rules.to_vec(),
            cancel: Vec::new(),
        };
        list.refuses("n", submitter, &Destination::parse_hop(host).unwrap(), subject)
    }

    #[test]
    fn only_what_a_rule_allows_is_allowed() {
        let rules = [rule(&["deploy"], &["logs.*"])];
        let refused = |submitter, host, subject| refusal(&rules, submitter, host, subject).unwrap();
        assert_eq!(refusal(&rules, "UA", "web1.eu", None), None);
        assert_eq!(refusal(&rules, "UA", "deploy@web1.EU", None), None);
        assert_eq!(refusal(&rules, "UA", "deploy@web1.eu", Some("logs.a")), None);
        assert!(refused("UA", "root@web1.eu", None).contains("be root"));
        assert!(refused("UA", "Deploy@web1.eu", None).contains("be Deploy"));
        assert!(refused("UA", "web1.us", None).contains("reach web1.us"));
        assert!(refused("UB", "web1.eu", None).contains("takes nothing from UB"));
        assert!(refused("UA", "web1.eu", Some("metrics")).contains("to the subject metrics"));
        assert!(refusal(&[], "UA", "a", None).is_some());
    }

    #[test]
    fn a_job_names_the_ports_of_a_rule_and_no_others() {
        let rules = [Rule {
            ports: vec![22, 2222],
            ..rule(&["deploy"], &[])
        }];
        assert_eq!(refusal(&rules, "UA", "ssh://deploy@web1.eu:2222", None), None);
        assert_eq!(refusal(&rules, "UA", "web1.eu", None), None);
        let refused = refusal(&rules, "UA", "ssh://web1.eu:2223", None).unwrap();
        assert!(refused.contains("name port 2223 of web1.eu"), "{refused}");
        // By default no port is allowed, not even the usual one: ssh_config may name another.
        let none = [rule(&["deploy"], &[])];
        for port in [22, 2222] {
            let host = format!("ssh://web1.eu:{port}");
            assert!(refusal(&none, "UA", &host, None).is_some(), "{port}");
        }
        // A single rule has to allow all of it.
        let apart = [rules[0].clone(), rule(&["root"], &[])];
        assert!(refusal(&apart, "UA", "ssh://root@web1.eu:22", None).is_some());
    }

    #[test]
    fn a_user_in_the_host_s_name_fits_nothing() {
        let list = AllowList {
            allow: vec![Rule {
                hosts: vec!["*".into()],
                users: vec!["*".into()],
                ..rule(&[], &[])
            }],
            cancel: Vec::new(),
        };
        for host in [
            "root@web1.eu",
            "ssh://web1.eu",
            "web1.eu/",
            "web1.eu b",
            "web1\n.eu",
            "",
        ] {
            let destination = Destination {
                user: None,
                host: host.into(),
                port: None,
            };
            let why = list.refuses("n", "UA", &destination, None).unwrap();
            assert!(why.contains("no host of the name"), "{why}");
        }
    }

    #[test]
    fn one_rule_has_to_fit_the_user_and_the_subject() {
        let rules = [rule(&["deploy"], &[]), rule(&[], &["logs.*"])];
        assert_eq!(refusal(&rules, "UA", "deploy@web1.eu", None), None);
        assert_eq!(refusal(&rules, "UA", "web1.eu", Some("logs.a")), None);
        let refused = refusal(&rules, "UA", "deploy@web1.eu", Some("logs.a")).unwrap();
        assert!(
            refused.contains("says as deploy to the subject logs.a"),
            "{refused}"
        );
    }
}
