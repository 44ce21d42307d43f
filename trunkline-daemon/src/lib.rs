//! The shared trunkline process and its control protocol.
