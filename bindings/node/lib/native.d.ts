// The interface of the native module, as bindings/node/src/hub.rs and options.rs define it.

export interface ConnectOptions {
  host: string;
  port: number;
  username: string;
  password?: string;
  privateKey?: Uint8Array;
  passphrase?: string;
  agent?: string;
  agentForward: boolean;
  hostKeys: 'any' | 'known' | 'known or new' | 'program';
  knownHosts: string[];
  keepaliveInterval: number;
  keepaliveCountMax: number;
  readyTimeout: number;
  tryKeyboard: boolean;
  asksHow: boolean;
  connections: number;
  localAddress?: string;
  family?: number;
  kex?: string[];
  serverHostKey?: string[];
  cipher?: string[];
  hmac?: string[];
  compress: boolean;
  overStream: boolean;
}

export interface DestinationOptions {
  destination: string;
  sshArgs: string[];
  env: string[][];
  directory: string;
  way: 'engine' | 'running daemon' | 'daemon';
  daemonCommand: string[];
  password?: string;
  passphrase?: string;
  readyTimeout: number;
  tryKeyboard: boolean;
}

export interface AuthenticationAttempt {
  login: number;
  username: string;
  method: 'none' | 'password' | 'keyboard-interactive' | 'key' | 'agent' | 'keys' | 'hostbased';
  password?: string;
  key?: Uint8Array;
  passphrase?: string;
  agent?: string;
  keys?: Uint8Array[];
  localHostname?: string;
  localUsername?: string;
}

export interface EngineSettings {
  busyAbove?: number;
  busyBelow?: number;
  maxLanes?: number;
  idleTimeout?: number;
}

export interface StdioOption {
  kind: 'pipe' | 'ignore' | 'fd' | 'path';
  fd?: number;
  path?: string;
}

export interface PtyOptions {
  term: string;
  cols: number;
  rows: number;
  width: number;
  height: number;
  modes: Uint8Array;
}

export interface SessionOptions {
  kind: 'exec' | 'shell' | 'subsystem';
  text: string;
  env: string[][];
  pty?: PtyOptions;
  stdio: StdioOption[];
  directory: string;
  agentForward?: boolean;
}

export interface SftpAttributes {
  mode?: number;
  uid?: number;
  gid?: number;
  size?: number;
  atime?: number;
  mtime?: number;
}

export interface SftpCall {
  op: string;
  path?: string;
  target?: string;
  handle?: number;
  offset?: number;
  length?: number;
  targetHandle?: number;
  targetOffset?: number;
  uids?: number[];
  gids?: number[];
  full?: boolean;
  flags?: number;
  attributes?: SftpAttributes;
  data?: Uint8Array;
}

export interface Fault {
  message: string;
  level: string;
  code: string | number;
  kind: string;
  execution: 'did not start' | 'may have started' | 'finished';
  mayPass: boolean;
  reason?: number;
  words?: string;
  disconnect?: { reason: number; words: string };
  lacking?: 'kex' | 'host_key' | 'cipher' | 'mac' | 'compression';
  unstarted?: { status: number | null; signal: string | null };
  address?: string;
  port?: number;
  errno?: number;
}

export declare class Hub {
  constructor(wake: () => void);
  drain(): unknown[];
  configure(settings: EngineSettings): boolean;
  leave(endsProcess: boolean): void;
  connect(options: ConnectOptions): number;
  connectTo(options: DestinationOptions): number;
  closeClient(client: number): void;
  answerHostKey(client: number, question: number, accept: boolean): void;
  answerListedKeys(client: number, question: number, wanted: boolean): void;
  answerQuestions(client: number, question: number, answers: string[]): void;
  answerAuthentication(client: number, question: number, attempt?: AuthenticationAttempt): void;
  answerSignature(client: number, question: number, signature?: Uint8Array): void;
  rekey(client: number): void;
  lanes(client: number): unknown;
  stats(client: number): number;
  openSession(client: number, options: SessionOptions): number;
  openTcp(client: number, host: string, port: number, fromHost: string, fromPort: number): number;
  openSocket(client: number, path: string): number;
  openSftp(client: number, env: string[][]): number;
  sftpCall(sftp: number, call: SftpCall): number;
  closeSftp(sftp: number): void;
  listen(client: number, address: string, port?: number): number;
  forwardSocket(client: number, path: string, target: string, port?: number): number;
  unlisten(client: number, request: number): void;
  openKey(content: Uint8Array, passphrase: string): number;
  accept(number: number): boolean;
  reject(number: number): void;
  read(stream: number, standardError: boolean): void;
  write(stream: number, data: Uint8Array): boolean;
  finish(stream: number): void;
  destroy(stream: number): void;
  signal(stream: number, name: string): void;
  resize(stream: number, cols: number, rows: number, width: number, height: number): void;
  held(): number[];
}

/** The events of a target of the hub; src/outbox.rs says what comes with each. */
export type Kind =
  | 'DATA'
  | 'ERROR_DATA'
  | 'END'
  | 'ERROR_END'
  | 'DRAIN'
  | 'OPEN'
  | 'FAIL'
  | 'EXIT'
  | 'CLOSE'
  | 'NOTICE'
  | 'HOST_KEY'
  | 'LISTED_KEYS'
  | 'PROVEN_KEYS'
  | 'QUESTIONS'
  | 'INCOMING'
  | 'PLACEMENT'
  | 'AGREED'
  | 'AUTHENTICATE'
  | 'UNUSABLE'
  | 'NEW_PASSWORD'
  | 'SIGN';

/** The kinds, each at its number. */
export function kinds(): Kind[];

/** The algorithms that the engine has, best first. */
export function algorithms(): Record<'kex' | 'serverHostKey' | 'cipher' | 'hmac' | 'compress', string[]>;

/** Text without what a terminal would act on. */
export function printable(text: string): string;

/** The counts for all environments of the process: their queues, and the chunks that they have. */
export function alive(): number[];

/** The fields of a private key in OpenSSH's or PEM's formats as SSH_AGENTC_ADD_IDENTITY has them, then its comment; throws. */
export function openKey(content: Uint8Array, passphrase?: string): Buffer;

/** Whether a private key in OpenSSH's or PEM's formats has a passphrase; throws if it is malformed. */
export function isSealed(content: Uint8Array): boolean;

export interface Native {
  Hub: typeof Hub;
  kinds: typeof kinds;
  algorithms: typeof algorithms;
  printable: typeof printable;
  alive: typeof alive;
  openKey: typeof openKey;
  isSealed: typeof isSealed;
}
