//! Real servers, a faulty network and hostile peers for tests.
