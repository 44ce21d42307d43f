//! SFTP version 3 client as a state machine without I/O.
