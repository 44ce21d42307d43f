//! What `ssh -G` prints and nobody needs.

/// Directives that decide nothing by themselves, and why each may be passed over.
///
/// Everything that `ssh -G` prints is a field of [`HostConfig`](super::HostConfig), or here, or a [`Reason`](super::Reason).
pub(super) const IRRELEVANT: &[(&str, &str)] = &[
    (
        "canonicaldomains",
        "ssh -G has already made the host name canonical",
    ),
    (
        "canonicalizefallbacklocal",
        "ssh -G has already made the host name canonical",
    ),
    (
        "canonicalizehostname",
        "ssh -G has already made the host name canonical",
    ),
    (
        "canonicalizemaxdots",
        "ssh -G has already made the host name canonical",
    ),
    (
        "canonicalizepermittedcnames",
        "ssh -G has already made the host name canonical",
    ),
    (
        "enablesshkeysign",
        "only for host-based authentication, which is a reason of its own",
    ),
    (
        "forwardx11timeout",
        "only for X11 forwarding, which is a reason of its own",
    ),
    (
        "forwardx11trusted",
        "only for X11 forwarding, which is a reason of its own",
    ),
    (
        "gssapiclientidentity",
        "only for GSSAPI, which is a reason where it is needed",
    ),
    (
        "gssapidelegatecredentials",
        "only for GSSAPI, which is a reason where it is needed",
    ),
    (
        "gssapikexalgorithms",
        "only for GSSAPIKeyExchange, which is a reason of its own",
    ),
    (
        "gssapirenewalforcesrekey",
        "only for GSSAPI, which is a reason where it is needed",
    ),
    (
        "gssapiserveridentity",
        "only for GSSAPI, which is a reason where it is needed",
    ),
    (
        "gssapitrustdns",
        "only for GSSAPI, which is a reason where it is needed",
    ),
    (
        "hostbasedacceptedalgorithms",
        "only for host-based authentication, which is a reason of its own",
    ),
    (
        "hostbasedkeytypes",
        "only for host-based authentication, which is a reason of its own",
    ),
    ("ignoreunknown", "ssh -G has already ignored what it names"),
    ("logverbose", "selects debug messages of ssh's own source files"),
    (
        "syslogfacility",
        "ssh uses it with -y only; the engine logs through tracing",
    ),
    ("tag", "read by Match tagged, which ssh -G has evaluated"),
    ("tunneldevice", "only for Tunnel, which is a reason of its own"),
    (
        "xauthlocation",
        "only for X11 forwarding, which is a reason of its own",
    ),
];
