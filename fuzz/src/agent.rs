//! What an agent answers, which may be a relay to another machine: any bytes, and any reply of each kind.

/// draft-ietf-sshm-ssh-agent: SSH_AGENT_IDENTITIES_ANSWER, SSH_AGENT_SIGN_RESPONSE, SSH_AGENT_EXTENSION_RESPONSE.
const ANSWERS: [u8; 3] = [12, 14, 29];

pub(crate) fn fuzz(input: (u8, &[u8])) {
    let (kind, body) = input;
    if kind == u8::MAX {
        return trunkline::fuzzing::agent(body);
    }
    let number = ANSWERS[usize::from(kind) % ANSWERS.len()];
    let length = 1 + body.len() as u32;
    trunkline::fuzzing::agent(&[&length.to_be_bytes()[..], &[number], body].concat());
}
