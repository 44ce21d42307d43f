//! The terminal's modes and size for a `pty-req` (RFC 4254 section 6.2).

use std::os::fd::AsFd;

use rustix::termios::{
    ControlModes, InputModes, LocalModes, OutputModes, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize,
};

/// The size of a terminal, with the fields of `pty-req` and `window-change` (RFC 4254 sections 6.2 and 6.7).
///
/// Zero means unknown, and the server then ignores the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowSize {
    /// Width in characters.
    pub cols: u32,
    /// Height in characters.
    pub rows: u32,
    /// Width in pixels.
    pub xpixel: u32,
    /// Height in pixels.
    pub ypixel: u32,
}

impl WindowSize {
    /// Returns the size of `terminal`; all zero if it is not a terminal.
    pub fn read_from(terminal: impl AsFd) -> Self {
        tcgetwinsize(terminal).map_or_else(
            |_| Self::default(),
            |size| Self {
                cols: size.ws_col.into(),
                rows: size.ws_row.into(),
                xpixel: size.ws_xpixel.into(),
                ypixel: size.ws_ypixel.into(),
            },
        )
    }
}

/// Returns the modes of `terminal` as the "encoded terminal modes" of a `pty-req`. If it is not a terminal, the list
/// has only its end mark, as in ssh.
///
/// Call this before the terminal enters raw mode, or pass its earlier modes to [`encode`].
pub fn read_from(terminal: impl AsFd) -> Vec<u8> {
    tcgetattr(terminal).map_or_else(|_| vec![TTY_OP_END], |modes| encode(&modes))
}

/// Encodes terminal modes (RFC 4254 section 8): an opcode and a `uint32` for each, then `TTY_OP_END`. Order and
/// selection are those of OpenSSH's `ssh_tty_make_modes` on Linux.
pub fn encode(modes: &Termios) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(5 * (2 + CHARACTERS.len() + FLAGS.len()) + 1);
    let mut put = |opcode: u8, value: u32| {
        encoded.push(opcode);
        encoded.extend(value.to_be_bytes());
    };
    put(TTY_OP_OSPEED, modes.output_speed());
    put(TTY_OP_ISPEED, modes.input_speed());
    for &(opcode, index) in CHARACTERS {
        let character = modes.special_codes[index];
        // "255 if none" (RFC 4254 section 8); Linux's _POSIX_VDISABLE is 0.
        put(opcode, if character == 0 { 255 } else { character.into() });
    }
    for &(opcode, flag) in FLAGS {
        // OpenSSH considers a mode on if any of its bits is set: with CS8, CS7 is on as well.
        let on = match flag {
            Flag::Input(flag) => modes.input_modes.intersects(flag),
            Flag::Local(flag) => modes.local_modes.intersects(flag),
            Flag::Output(flag) => modes.output_modes.intersects(flag),
            Flag::Control(flag) => modes.control_modes.intersects(flag),
        };
        put(opcode, on.into());
    }
    encoded.push(TTY_OP_END);
    encoded
}

const TTY_OP_END: u8 = 0;
const TTY_OP_ISPEED: u8 = 128;
const TTY_OP_OSPEED: u8 = 129;

/// The special characters that Linux has (opcodes 1 to 18).
const CHARACTERS: &[(u8, SpecialCodeIndex)] = &[
    (1, SpecialCodeIndex::VINTR),
    (2, SpecialCodeIndex::VQUIT),
    (3, SpecialCodeIndex::VERASE),
    (4, SpecialCodeIndex::VKILL),
    (5, SpecialCodeIndex::VEOF),
    (6, SpecialCodeIndex::VEOL),
    (7, SpecialCodeIndex::VEOL2),
    (8, SpecialCodeIndex::VSTART),
    (9, SpecialCodeIndex::VSTOP),
    (10, SpecialCodeIndex::VSUSP),
    (12, SpecialCodeIndex::VREPRINT),
    (13, SpecialCodeIndex::VWERASE),
    (14, SpecialCodeIndex::VLNEXT),
    (18, SpecialCodeIndex::VDISCARD),
];

/// One bit, or a few, of one of the four words of modes.
#[derive(Clone, Copy)]
enum Flag {
    Input(InputModes),
    Local(LocalModes),
    Output(OutputModes),
    Control(ControlModes),
}

/// The flags (opcodes 30 to 93). 42 is RFC 8160's IUTF8.
const FLAGS: &[(u8, Flag)] = &[
    (30, Flag::Input(InputModes::IGNPAR)),
    (31, Flag::Input(InputModes::PARMRK)),
    (32, Flag::Input(InputModes::INPCK)),
    (33, Flag::Input(InputModes::ISTRIP)),
    (34, Flag::Input(InputModes::INLCR)),
    (35, Flag::Input(InputModes::IGNCR)),
    (36, Flag::Input(InputModes::ICRNL)),
    (37, Flag::Input(InputModes::from_bits_retain(IUCLC))),
    (38, Flag::Input(InputModes::IXON)),
    (39, Flag::Input(InputModes::IXANY)),
    (40, Flag::Input(InputModes::IXOFF)),
    (41, Flag::Input(InputModes::IMAXBEL)),
    (42, Flag::Input(InputModes::IUTF8)),
    (50, Flag::Local(LocalModes::ISIG)),
    (51, Flag::Local(LocalModes::ICANON)),
    (52, Flag::Local(LocalModes::XCASE)),
    (53, Flag::Local(LocalModes::ECHO)),
    (54, Flag::Local(LocalModes::ECHOE)),
    (55, Flag::Local(LocalModes::ECHOK)),
    (56, Flag::Local(LocalModes::ECHONL)),
    (57, Flag::Local(LocalModes::NOFLSH)),
    (58, Flag::Local(LocalModes::TOSTOP)),
    (59, Flag::Local(LocalModes::IEXTEN)),
    (60, Flag::Local(LocalModes::ECHOCTL)),
    (61, Flag::Local(LocalModes::ECHOKE)),
    (62, Flag::Local(LocalModes::PENDIN)),
    (70, Flag::Output(OutputModes::OPOST)),
    (71, Flag::Output(OutputModes::OLCUC)),
    (72, Flag::Output(OutputModes::ONLCR)),
    (73, Flag::Output(OutputModes::OCRNL)),
    (74, Flag::Output(OutputModes::ONOCR)),
    (75, Flag::Output(OutputModes::ONLRET)),
    (90, Flag::Control(ControlModes::CS7)),
    (91, Flag::Control(ControlModes::CS8)),
    (92, Flag::Control(ControlModes::PARENB)),
    (93, Flag::Control(ControlModes::PARODD)),
];

/// Linux's IUCLC, which rustix defines only for some back ends.
pub const IUCLC: u32 = 0o1000;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{OptionalActions, Winsize, tcsetattr, tcsetwinsize};
    use std::collections::BTreeMap;
    use std::fs::File;
    use std::os::fd::OwnedFd;

    /// Opens a new pseudo-terminal, and returns the master's end and the slave's.
    fn pty() -> (OwnedFd, OwnedFd) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal opens");
        grantpt(&master).expect("a pseudo-terminal is granted");
        unlockpt(&master).expect("a pseudo-terminal unlocks");
        let name = ptsname(&master, Vec::new()).expect("a pseudo-terminal has a name");
        let slave = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty());
        (master, slave.expect("the slave opens"))
    }

    fn decode(encoded: &[u8]) -> BTreeMap<u8, u32> {
        let (&end, pairs) = encoded.split_last().expect("an end mark at least");
        assert_eq!((end, pairs.len() % 5), (TTY_OP_END, 0));
        let value = |pair: &[u8]| u32::from_be_bytes([pair[1], pair[2], pair[3], pair[4]]);
        pairs.chunks_exact(5).map(|pair| (pair[0], value(pair))).collect()
    }

    #[test]
    fn modes_carry_speeds_characters_and_flags() {
        let (_master, slave) = pty();
        let mut modes = tcgetattr(&slave).expect("a terminal has modes");
        modes.set_speed(115_200).expect("a usual speed");
        modes.special_codes[SpecialCodeIndex::VINTR] = 3;
        modes.special_codes[SpecialCodeIndex::VEOL] = 0;
        modes.local_modes.insert(LocalModes::ECHO);
        modes.local_modes.remove(LocalModes::TOSTOP);
        modes.input_modes.insert(InputModes::IUTF8);
        modes.control_modes.remove(ControlModes::CSIZE);
        modes.control_modes.insert(ControlModes::CS8);
        tcsetattr(&slave, OptionalActions::Now, &modes).expect("a terminal takes modes");
        let decoded = decode(&read_from(&slave));
        let expected = [
            (129, 115_200),
            (128, 115_200),
            (1, 3),
            (6, 255),
            (53, 1),
            (58, 0),
            (42, 1),
            (90, 1),
            (91, 1),
        ];
        for (opcode, value) in expected {
            assert_eq!(decoded.get(&opcode), Some(&value), "opcode {opcode}");
        }
        assert_eq!(
            decoded.len(),
            2 + CHARACTERS.len() + FLAGS.len(),
            "no opcode comes twice"
        );
    }

    #[test]
    fn what_is_no_terminal_has_no_modes_and_no_size() {
        let null = File::open("/dev/null").expect("/dev/null opens");
        assert_eq!(read_from(&null), [TTY_OP_END]);
        assert_eq!(WindowSize::read_from(&null), WindowSize::default());
    }

    #[test]
    fn the_window_size_is_that_of_the_terminal() {
        let (_master, slave) = pty();
        let size = Winsize {
            ws_row: 50,
            ws_col: 132,
            ws_xpixel: 1056,
            ws_ypixel: 800,
        };
        tcsetwinsize(&slave, size).expect("a terminal takes a size");
        assert_eq!(
            WindowSize::read_from(&slave),
            WindowSize {
                cols: 132,
                rows: 50,
                xpixel: 1056,
                ypixel: 800
            }
        );
    }
}
