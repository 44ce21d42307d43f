//! Tells the linker that the node program has the symbols of Node-API.

fn main() {
    napi_build::setup();
}
