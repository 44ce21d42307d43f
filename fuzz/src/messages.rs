//! Every parser of messages: those of the transport, of authentication in each of its states, and negotiation.

use trunkline_proto::fuzzing;

pub(crate) fn fuzz(input: (u8, Vec<Vec<u8>>)) {
    let (request, payloads) = input;
    for payload in &payloads {
        fuzzing::transport_message(payload);
    }
    fuzzing::authentication(request, &payloads);
}
