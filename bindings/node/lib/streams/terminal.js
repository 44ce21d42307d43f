'use strict';

// Terminal modes and sizes, as ssh2's programs give them.

/** Opcodes of RFC 4254 section 8. @type {Record<string, number>} */
const MODES = {
  VINTR: 1, VQUIT: 2, VERASE: 3, VKILL: 4, VEOF: 5, VEOL: 6, VEOL2: 7, VSTART: 8, VSTOP: 9, VSUSP: 10,
  VDSUSP: 11, VREPRINT: 12, VWERASE: 13, VLNEXT: 14, VFLUSH: 15, VSWTCH: 16, VSTATUS: 17, VDISCARD: 18,
  IGNPAR: 30, PARMRK: 31, INPCK: 32, ISTRIP: 33, INLCR: 34, IGNCR: 35, ICRNL: 36, IUCLC: 37, IXON: 38,
  IXANY: 39, IXOFF: 40, IMAXBEL: 41, IUTF8: 42, ISIG: 50, ICANON: 51, XCASE: 52, ECHO: 53, ECHOE: 54,
  ECHOK: 55, ECHONL: 56, NOFLSH: 57, TOSTOP: 58, IEXTEN: 59, ECHOCTL: 60, ECHOKE: 61, PENDIN: 62, OPOST: 70,
  OLCUC: 71, ONLCR: 72, OCRNL: 73, ONOCR: 74, ONLRET: 75, CS7: 90, CS8: 91, PARENB: 92, PARODD: 93,
  TTY_OP_ISPEED: 128, TTY_OP_OSPEED: 129,
};

/**
 * Modes as the protocol has them: an opcode and a number each, and a zero byte; nothing for none. Bytes are sent as they are, and
 * what is not a number is left out.
 * @param {import('../index').TerminalModes | Uint8Array | number[] | null | undefined} modes
 * @returns {Buffer}
 */
function encodeModes(modes) {
  if (typeof modes !== 'object' || modes === null) return Buffer.alloc(0);
  if (modes instanceof Uint8Array || Array.isArray(modes)) return Buffer.from(modes);
  const known = Object.entries(modes).filter(([name, value]) => Object.hasOwn(MODES, name) && Number.isFinite(value));
  if (known.length === 0) return Buffer.alloc(0);
  const encoded = Buffer.alloc(known.length * 5 + 1);
  known.forEach(([name, value], index) => {
    encoded[index * 5] = MODES[name];
    encoded.writeUInt32BE(value >>> 0, index * 5 + 1);
  });
  return encoded;
}

/**
 * The terminal that ssh2's options ask for, with its defaults.
 * @param {true | import('../index').PseudoTtyOptions} options
 * @returns {import('../native').PtyOptions}
 */
function terminal(options) {
  const given = options === true ? {} : options;
  const number = (/** @type {unknown} */ value, /** @type {number} */ otherwise) =>
    typeof value === 'number' && value >= 0 ? value : otherwise;
  return {
    term: given.term ?? 'vt100',
    cols: number(given.cols, 80),
    rows: number(given.rows, 24),
    width: number(given.width, 640),
    height: number(given.height, 480),
    modes: encodeModes(given.modes),
  };
}

module.exports = { terminal };
