/// <reference types="node" />

import { EventEmitter } from 'node:events';
import { Duplex, Readable, Writable } from 'node:stream';

/** What went wrong. */
export interface SshError extends Error {
  /**
   * Where, in ssh2's words: "client-socket", "client-dns", "client-timeout", "client-authentication", "handshake" (the host
   * key), "protocol", "client-ssh" (the server refused a session or tunnel), "client".
   */
  level: string;
  /** The system's name of the error ("ECONNREFUSED"), or "ERR_" with what kind it is ("ERR_HOST_KEY"). */
  code: string;
  /** Who is to blame: "peer", "network", "timeout", "host_key", "authentication", "configuration", "limit", "local". */
  kind: string;
  /** Whether the command that was asked for may have run. Only after "did not start" is it safe to try again. */
  execution: 'did not start' | 'may have started' | 'finished';
  /** Whether such a failure may pass by itself, so that another attempt is worth while. It says nothing of the command. */
  mayPass: boolean;
  /** RFC 4254's reason for a refused channel. */
  reason?: number;
}

/** A list of algorithms, best first, or changes to the engine's own. */
export type AlgorithmList =
  | string[]
  | { append?: AlgorithmNames; prepend?: AlgorithmNames; remove?: AlgorithmNames };
export type AlgorithmNames = string | RegExp | Array<string | RegExp>;

/** A question that the server asks. */
export interface Prompt {
  prompt: string;
  /** Whether the answer may be seen while it is typed. */
  echo: boolean;
}

/** A verifier of host keys: answers by its result (a promise, too) or through `verify`. */
export type HostVerifier = (key: Buffer, verify: (accept: boolean) => void) => boolean | Promise<boolean> | void;
/** The same, of keys that were hashed first (`hostHash`), in hexadecimal. */
export type HostHashVerifier = (hash: string, verify: (accept: boolean) => void) => boolean | Promise<boolean> | void;

/** How to connect. */
export interface ConnectConfig {
  /** The server's name or address; "localhost". */
  host?: string;
  hostname?: string;
  /** 22. */
  port?: number;
  /** The user on the server; required. */
  username?: string;
  user?: string;
  password?: string;
  /** The content of a private key file, in OpenSSH's or a PEM format. */
  privateKey?: Buffer | string;
  passphrase?: Buffer | string;
  /** The path of an agent's socket. */
  agent?: string;
  /** Whether sessions are lent the agent. */
  agentForward?: boolean;
  /** Judges the host key instead of known_hosts. */
  hostVerifier?: HostVerifier | HostHashVerifier;
  /** Hashes the key for `hostVerifier`: "sha256", "md5". */
  hostHash?: string;
  /**
   * known_hosts files that the host key is checked against; by default the user's and the system's. A key that differs from
   * what they say is refused, and so is a host that they do not name. Only a Client whose program names no files takes such a
   * host, as ssh2 does. false: any key passes. Nothing is written.
   */
  knownHosts?: string | string[] | false;
  /** Milliseconds between signs of life that the server is asked for; 0, none. */
  keepaliveInterval?: number;
  /** Signs of life that may be missing; 3. */
  keepaliveCountMax?: number;
  /** Milliseconds until 'ready'; 20000. 0: no limit. */
  readyTimeout?: number;
  /** Whether 'keyboard-interactive' is answered. */
  tryKeyboard?: boolean;
  /** A stream to talk over instead of connecting by TCP: one of another client's tunnels, for example. */
  sock?: Duplex;
  /** The address to connect from. */
  localAddress?: string;
  forceIPv4?: boolean;
  forceIPv6?: boolean;
  algorithms?: {
    kex?: AlgorithmList;
    serverHostKey?: AlgorithmList;
    cipher?: AlgorithmList;
    hmac?: AlgorithmList;
    compress?: AlgorithmList;
  };
  /** Is told what happens, in words. */
  debug?: (text: string) => void;
}

/** How to reach a destination of ssh_config: as ssh would, with all that `ssh -G` says of it. */
export interface DestinationConfig {
  /** What one would type behind `ssh`: an alias, user@host, ssh://user@host:port. */
  destination: string;
  /** The ssh_config file, instead of the user's and the system's. */
  config?: string;
  username?: string;
  user?: string;
  port?: number;
  /** The path of an agent's socket, or what else IdentityAgent may be. */
  agent?: string;
  agentForward?: boolean;
  /** Further options of ssh_config, before those of the file: { ConnectTimeout: 5, IdentityFile: ['a', 'b'] }. */
  options?: Record<string, string | number | Array<string | number>>;
  /**
   * Whose connections: the trunkline daemon's, which all programs and workers of a user share and which outlive this process;
   * or this process's. "auto" (the default) uses a daemon that runs; true starts one; false uses none.
   */
  daemon?: 'auto' | boolean;
  /** The answer when the server asks for a password. Without one nobody is asked. */
  password?: string;
  /** The answer when a key file asks for its passphrase. */
  passphrase?: Buffer | string;
  /** Milliseconds until 'ready'; 20000. 0: no limit. */
  readyTimeout?: number;
  /** Whether 'keyboard-interactive' is answered. */
  tryKeyboard?: boolean;
  /** Is told what happens, in words. */
  debug?: (text: string) => void;
}

/** A terminal for a session. */
export interface PseudoTtyOptions {
  /** 24. */
  rows?: number;
  /** 80. */
  cols?: number;
  /** In pixels. */
  height?: number;
  /** In pixels. */
  width?: number;
  /** "vt100". */
  term?: string;
  /** By the names of RFC 4254 section 8: { ECHO: 0 }. */
  modes?: Record<string, number>;
}

export interface ExecOptions {
  /** Environment variables; servers take only those that their AcceptEnv names. */
  env?: Record<string, string>;
  pty?: boolean | PseudoTtyOptions;
  /** false: the command's input ends with its output. */
  allowHalfOpen?: boolean;
  /** Where input, output and error output come from and go to. */
  stdio?: Stdio;
}

/**
 * One of a command's streams: the Channel's ('pipe'); nothing ('ignore', null); a file descriptor of this process, which may be
 * closed as soon as exec() has returned; or a path of a FIFO, a Unix socket or a file, which the engine or the daemon reads and
 * writes without JavaScript.
 *
 * Of what is written, a path means what is there: a FIFO, a socket that somebody listens on, a file, at whose end is written
 * and which is made where it is missing. With "fifo:", "unix:" or "file:" in front, FIFOs are made too, and a Unix socket is
 * listened on: its readers get the stream, one at a time.
 */
export type StdioStream = 'pipe' | 'ignore' | number | string | null | undefined;
export type Stdio = [input?: StdioStream, output?: StdioStream, error?: StdioStream];

export interface ShellOptions {
  env?: Record<string, string>;
}

export type ClientCallback = (error: SshError | undefined, channel: Channel) => void;
export type TunnelCallback = (error: SshError | undefined, tunnel: Tunnel) => void;

/** Standard streams, and what the command's end says of them. */
export declare class Channel extends Duplex {
  readonly type: string;
  readonly stdin: this;
  readonly stdout: this;
  readonly stderr: Readable;
  /** The exit status, from 'exit' on, which comes behind the output; null if a signal ended the command. */
  readonly exitCode: number | null | undefined;
  /** The signal that ended the command. */
  readonly exitSignal: string | undefined;
  /** Why it ended, if that was not the server's word. */
  readonly failure: SshError | null;
  /** Ends it now. The server closes the command's pipes; one on a terminal gets SIGHUP, others go on until they write. */
  close(): void;
  /** Sends a signal, with or without "SIG" in front. */
  signal(name: string): void;
  /** Tells of the terminal's new size: characters, then pixels. */
  setWindow(rows: number, cols: number, height?: number, width?: number): void;

  on(event: 'exit', listener: (code: number | null, signal?: string, coreDumped?: boolean, description?: string) => void): this;
  on(event: 'close', listener: (code?: number | null, signal?: string, coreDumped?: boolean, description?: string) => void): this;
  on(event: string | symbol, listener: (...args: any[]) => void): this;
}

/**
 * A connection by way of the server. Clients of databases take it for a socket, which is why it has a socket's `connect`,
 * `setNoDelay`, `setKeepAlive`, `ref` and `unref`. It is connected already: `connect` says so, and lets it end in both
 * directions at once, as sockets do; the others change nothing.
 */
export declare class Tunnel extends Channel {
  connect(...args: unknown[]): this;
  setNoDelay(noDelay?: boolean): this;
  setKeepAlive(enable?: boolean, initialDelay?: number): this;
  ref(): this;
  unref(): this;
}

/** A Unix socket of this machine that leads to the server. It ends with its client. */
export interface SocketForward {
  /** Ends the listening and removes the socket; connections that are being carried go on. */
  close(): Promise<void>;
}

export interface TcpConnectionDetails {
  srcIP: string;
  srcPort: number;
  destIP: string;
  destPort: number;
}

export interface UnixConnectionDetails {
  socketPath: string;
}

/** What was agreed on. */
export interface Negotiated {
  /** The server's identification line. */
  server: string;
  kex: string;
  serverHostKey: string;
  cipher: string;
  compressed: boolean;
}

/** The connections behind a client. */
export interface ConnectionStats {
  /** Whether they are the daemon's. */
  daemon: boolean;
  lanes: Lane[];
}

/** Where a client's new streams go from now on. */
export interface Placement {
  /** Whether traffic keeps them away from one of the connections. */
  apart: boolean;
  lanes: Lane[];
}

/** What can be set of the engine that a process has. */
export interface EngineSettings {
  /** Bits a second above which a connection gets no new streams; 1,250,000. */
  busyAbove?: number;
  /** Bits a second below which it does again; 750,000. */
  busyBelow?: number;
  /** The most connections to one host; 16. */
  maxLanes?: number;
  /** Milliseconds that a connection of a destination of ssh_config is kept without clients and streams; 600,000. */
  idleTimeout?: number;
}

/** One of the connections behind a client. */
export interface Lane {
  /** The server's identification line; null while it is being made. */
  server: string | null;
  cipher: string | null;
  /** The round-trip time in milliseconds. */
  rtt: number | null;
  sessions: number;
  tunnels: number;
  /** Whether its traffic keeps new streams away from it. */
  busy: boolean;
  /** Its traffic in both directions as last measured, in bits a second. */
  rate: number;
  bytesSent: number;
  bytesReceived: number;
}

/** ssh2's Client. */
export declare class Client extends EventEmitter {
  /** Connects; 'ready' or 'error' follows. Throws for options that cannot be used. */
  connect(config: ConnectConfig | DestinationConfig): this;
  /** Runs a command. */
  exec(command: string, callback: ClientCallback): boolean;
  exec(command: string, options: ExecOptions, callback: ClientCallback): boolean;
  /** Starts the user's shell, on a terminal unless the window is false. */
  shell(callback: ClientCallback): boolean;
  shell(window: PseudoTtyOptions | ShellOptions | false, callback: ClientCallback): boolean;
  shell(window: PseudoTtyOptions | false, options: ShellOptions, callback: ClientCallback): boolean;
  /** Starts a subsystem. */
  subsys(name: string, callback: ClientCallback): boolean;
  /** Opens an SFTP session. */
  sftp(callback: (error: SshError | undefined, sftp: SFTP) => void): boolean;
  /** Connects from the server to a TCP port. The source is what the server is told of who asks. */
  forwardOut(srcIP: string, srcPort: number, dstIP: string, dstPort: number, callback: TunnelCallback): boolean;
  /** Connects to a Unix socket of the server. */
  forwardOutStreamLocal(socketPath: string, callback: TunnelCallback): boolean;
  openssh_forwardOutStreamLocal(socketPath: string, callback: TunnelCallback): boolean;
  /**
   * Listens on a Unix socket of this machine ("/tmp/pg1/.s.PGSQL.5432"), and carries its clients to a TCP port or a Unix socket
   * as seen from the server. A socket in its place that nobody listens on is replaced; one in use is an error.
   */
  forwardOutLocalSocket(
    localSocketPath: string,
    dstHost: string,
    dstPort: number,
    callback: (error: SshError | undefined, forward: SocketForward) => void,
  ): boolean;
  forwardOutLocalSocket(
    localSocketPath: string,
    dstSocketPath: string,
    callback: (error: SshError | undefined, forward: SocketForward) => void,
  ): boolean;
  /** Has the server listen on a TCP port; with 0 it chooses one, which the callback gets. */
  forwardIn(bindAddr: string, bindPort: number, callback?: (error: SshError | undefined, port: number) => void): boolean;
  unforwardIn(bindAddr: string, bindPort: number, callback?: (error?: Error) => void): boolean;
  /** Has the server listen on a Unix socket. */
  openssh_forwardInStreamLocal(socketPath: string, callback?: (error?: SshError) => void): boolean;
  openssh_unforwardInStreamLocal(socketPath: string, callback?: (error?: Error) => void): boolean;
  /** Exchanges keys anew; the engine does so by itself as often as it is needed. */
  rekey(callback?: () => void): void;
  /** Does nothing: Nagle's algorithm is always off. */
  setNoDelay(noDelay?: boolean): this;
  /** The connections of this process behind the client; none where they are the daemon's. */
  lanes(): Lane[];
  /** The connections behind the client, whosever they are. */
  stats(callback: (error: SshError | undefined, stats: ConnectionStats) => void): boolean;
  /** Ends the connection and everything that goes over it; 'close' follows. */
  end(): this;
  destroy(): this;

  on(event: 'ready' | 'end', listener: () => void): this;
  on(event: 'close', listener: (hadError: boolean) => void): this;
  on(event: 'error', listener: (error: SshError) => void): this;
  /** New streams go elsewhere than before. */
  on(event: 'placement', listener: (placement: Placement) => void): this;
  on(event: 'handshake', listener: (negotiated: Negotiated) => void): this;
  on(event: 'banner', listener: (text: string, language: string) => void): this;
  on(
    event: 'keyboard-interactive',
    listener: (
      name: string,
      instructions: string,
      language: string,
      prompts: Prompt[],
      finish: (answers: string[]) => void,
    ) => void,
  ): this;
  on(
    event: 'tcp connection',
    listener: (details: TcpConnectionDetails, accept: () => Tunnel, reject: () => void) => void,
  ): this;
  on(
    event: 'unix connection',
    listener: (details: UnixConnectionDetails, accept: () => Tunnel, reject: () => void) => void,
  ): this;
  on(event: string | symbol, listener: (...args: any[]) => void): this;
}

/** Attributes of a file on the server, with fs.Stats' questions. Times are seconds since 1970. */
export interface Stats {
  mode: number;
  uid: number;
  gid: number;
  size: number;
  atime: number;
  mtime: number;
  isDirectory(): boolean;
  isFile(): boolean;
  isBlockDevice(): boolean;
  isCharacterDevice(): boolean;
  isSymbolicLink(): boolean;
  isFIFO(): boolean;
  isSocket(): boolean;
}

/** Attributes to be set; owner and group, and the two times, only together. */
export interface InputAttributes {
  mode?: number | string;
  uid?: number;
  gid?: number;
  size?: number;
  atime?: number | Date;
  mtime?: number | Date;
}

export interface FileEntry {
  filename: string;
  /** A line as of `ls -l`, owners by number. */
  longname: string;
  attrs: Stats;
}

/** An error of a file operation: `code` is the server's status (utils.sftp.STATUS_CODE). */
export interface SftpError extends Error {
  code: number | string;
}

type Done = (error?: SftpError) => void;
type Result<T> = (error: SftpError | undefined, value: T) => void;

export interface FastOptions {
  /** Is told now and then how far it is, in bytes. */
  step?: (done: number, chunk: number, total: number) => void;
  /** The permissions of the file that is made (fastPut). */
  mode?: number | string;
}

export interface ReadStreamOptions {
  flags?: string;
  mode?: number;
  start?: number;
  /** The last byte, inclusive. */
  end?: number;
  encoding?: BufferEncoding;
  handle?: Buffer;
  autoClose?: boolean;
  highWaterMark?: number;
}

export interface WriteStreamOptions {
  flags?: string;
  mode?: number;
  start?: number;
  encoding?: BufferEncoding;
  handle?: Buffer;
  autoClose?: boolean;
  highWaterMark?: number;
}

/** ssh2's SFTPWrapper. Paths that are not absolute start at the user's home. */
export declare class SFTP extends EventEmitter {
  private constructor();
  open(path: string, flags: string | number, callback: Result<Buffer>): boolean;
  open(path: string, flags: string | number, mode: number | string | InputAttributes, callback: Result<Buffer>): boolean;
  close(handle: Buffer, callback?: Done): boolean;
  read(
    handle: Buffer,
    buffer: Buffer,
    offset: number,
    length: number,
    position: number,
    callback: (error: SftpError | undefined, bytesRead: number, buffer: Buffer, position: number) => void,
  ): boolean;
  write(handle: Buffer, buffer: Buffer, offset: number, length: number, position: number, callback?: Done): boolean;
  fstat(handle: Buffer, callback: Result<Stats>): boolean;
  fsetstat(handle: Buffer, attributes: InputAttributes, callback?: Done): boolean;
  futimes(handle: Buffer, atime: number | Date, mtime: number | Date, callback?: Done): boolean;
  fchown(handle: Buffer, uid: number, gid: number, callback?: Done): boolean;
  fchmod(handle: Buffer, mode: number | string, callback?: Done): boolean;
  opendir(path: string, callback: Result<Buffer>): boolean;
  readdir(where: string | Buffer, callback: Result<FileEntry[]>): boolean;
  stat(path: string, callback: Result<Stats>): boolean;
  lstat(path: string, callback: Result<Stats>): boolean;
  exists(path: string, callback: (exists: boolean) => void): boolean;
  setstat(path: string, attributes: InputAttributes, callback?: Done): boolean;
  utimes(path: string, atime: number | Date, mtime: number | Date, callback?: Done): boolean;
  chown(path: string, uid: number, gid: number, callback?: Done): boolean;
  chmod(path: string, mode: number | string, callback?: Done): boolean;
  mkdir(path: string, callback?: Done): boolean;
  mkdir(path: string, attributes: InputAttributes, callback?: Done): boolean;
  rmdir(path: string, callback?: Done): boolean;
  unlink(path: string, callback?: Done): boolean;
  /** Replaces what is there, where the server can. */
  rename(path: string, target: string, callback?: Done): boolean;
  ext_openssh_rename(path: string, target: string, callback?: Done): boolean;
  ext_openssh_hardlink(path: string, target: string, callback?: Done): boolean;
  ext_openssh_fsync(handle: Buffer, callback?: Done): boolean;
  ext_openssh_statvfs(path: string, callback: Result<Record<string, number>>): boolean;
  /** Makes the link `path`, which says `target`. */
  symlink(target: string, path: string, callback?: Done): boolean;
  readlink(path: string, callback: Result<string>): boolean;
  realpath(path: string, callback: Result<string>): boolean;
  /** A whole file of the server into one of this machine; no byte passes through JavaScript. */
  fastGet(remotePath: string, localPath: string, callback: Done): boolean;
  fastGet(remotePath: string, localPath: string, options: FastOptions, callback: Done): boolean;
  /** A whole file of this machine into one of the server's. */
  fastPut(localPath: string, remotePath: string, callback: Done): boolean;
  fastPut(localPath: string, remotePath: string, options: FastOptions, callback: Done): boolean;
  readFile(path: string, callback: Result<Buffer>): boolean;
  readFile(path: string, encoding: BufferEncoding | { encoding: BufferEncoding }, callback: Result<string>): boolean;
  writeFile(path: string, data: string | Buffer, callback?: Done): boolean;
  writeFile(
    path: string,
    data: string | Buffer,
    options: BufferEncoding | { encoding?: BufferEncoding; mode?: number; flag?: string },
    callback?: Done,
  ): boolean;
  appendFile(path: string, data: string | Buffer, callback?: Done): boolean;
  createReadStream(path: string, options?: ReadStreamOptions | BufferEncoding): Readable;
  createWriteStream(path: string, options?: WriteStreamOptions | BufferEncoding): Writable;
  /** Closes the session, with everything that is open in it; 'close' follows. */
  end(): void;
  destroy(): void;
}

export declare const utils: {
  sftp: {
    STATUS_CODE: Readonly<Record<string, number>>;
    OPEN_MODE: Readonly<Record<string, number>>;
  };
};

export interface RunOptions extends ExecOptions {
  /** What the command reads; nothing, by default. */
  input?: string | Uint8Array | Readable | null;
  /** What output becomes: "utf8"; "buffer" for Buffers. */
  encoding?: BufferEncoding | 'buffer';
  /** Whether a status other than 0 is an error. */
  check?: boolean;
}

export interface RunResult<Output = string> {
  /** The exit status; null if a signal ended the command. */
  code: number | null;
  signal: string | undefined;
  stdout: Output;
  stderr: Output;
}

/** A connection to a host, for code with promises. */
export declare class Connection {
  private constructor();
  /** ssh2's view of it. */
  readonly client: Client;
  /** Resolves when the connection has ended: to the reason if it was lost. */
  readonly closed: Promise<Error | undefined>;
  /** Runs a command to its end. */
  run(command: string, options: RunOptions & { encoding: 'buffer' }): Promise<RunResult<Buffer>>;
  run(command: string, options?: RunOptions): Promise<RunResult>;
  /**
   * A command's output as it comes: an async iterable of chunks, and a Duplex. A lost connection is an error where the output
   * was cut off; leaving the loop closes the stream.
   */
  stream(command: string, options?: ExecOptions): Channel;
  /** The user's shell, on a terminal unless the window is false. */
  shell(window?: PseudoTtyOptions | false): Channel;
  /** A connection from the server to a TCP port. */
  forwardOut(host: string, port: number): Promise<Tunnel>;
  /** A connection to a Unix socket of the server. */
  forwardOutStreamLocal(path: string): Promise<Tunnel>;
  /** A Unix socket of this machine whose clients are carried to a TCP port or a Unix socket as seen from the server. */
  forwardOutLocalSocket(localSocketPath: string, dstHost: string, dstPort: number): Promise<SocketForward>;
  forwardOutLocalSocket(localSocketPath: string, dstSocketPath: string): Promise<SocketForward>;
  /** An SFTP session. */
  sftp(): Promise<SFTP>;
  /** The connections of this process behind it; none where they are the daemon's. */
  lanes(): Lane[];
  /** The connections behind it, whosever they are. */
  stats(): Promise<ConnectionStats>;
  /** Ends it, with everything that goes over it. */
  close(): Promise<void>;
}

/**
 * Connects to a destination of ssh_config, or to what is described in full; rejects with what 'error' would tell.
 * `connect('db1')` reaches what `ssh db1` would.
 */
export declare function connect(destination: string, config?: Omit<DestinationConfig, 'destination'>): Promise<Connection>;
export declare function connect(config: ConnectConfig | DestinationConfig): Promise<Connection>;

/** Sets what of the engine can be set, which all of the process's clients share. To be called before the first connects. */
export declare function configure(settings: EngineSettings): void;
