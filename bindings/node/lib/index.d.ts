/// <reference types="node" />

import { Duplex, Readable } from 'node:stream';
import * as ssh2 from './ssh2';
import { ClientChannel, ConnectConfig, ExecOptions, PseudoTtyOptions, SFTPWrapper } from './ssh2';

export * from './ssh2';

/** A failure. */
export interface SshError extends Error {
  /**
   * The place, in ssh2's words: "client-socket", "client-dns", "client-timeout", "client-authentication", "handshake" (the host
   * key), "protocol", "client-ssh" (the server refused a session or tunnel), "client".
   */
  level: string;
  /** ssh2's type has it; what the server says is in the message. */
  description?: string;
  /** The system's name of the error ("ECONNREFUSED"), or "ERR_" with what kind it is ("ERR_HOST_KEY"). */
  code: string | number;
  /** Who is to blame: "peer", "network", "timeout", "host_key", "authentication", "configuration", "limit", "local". */
  kind: string;
  /** Whether the command that was asked for may have run. Only after "did not start" is it safe to try again. */
  execution: 'did not start' | 'may have started' | 'finished';
  /** Whether such a failure may pass by itself, so that another attempt is worth while. It says nothing of the command. */
  mayPass: boolean;
  /** RFC 4254's reason for a refused channel. */
  reason?: number;
}

/** The options for a destination of ssh_config: as ssh would, with all that `ssh -G` says of it. */
export interface DestinationConfig {
  /** The destination, as one would type it after `ssh`: an alias, user@host, ssh://user@host:port. */
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
   * The connections to use: the trunkline daemon's, which all programs and workers of a user share and which outlive this process;
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


/** An SFTP session. */
export type SFTP = SFTPWrapper;

/**
 * A connection by way of the server. Clients of databases take it for a socket, which is why it has a socket's `connect`,
 * `setNoDelay`, `setKeepAlive`, `ref` and `unref`. It is connected already: `connect` says so, and lets it end in both
 * directions at once, as sockets do; the others change nothing.
 */
export interface Tunnel extends ClientChannel {
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

/** The settings of a process's engine. */
export interface EngineSettings {
  /** Bits a second above which a connection gets no new streams; 1,250,000. */
  busyAbove?: number;
  /** Bits a second below which it does again; 750,000. */
  busyBelow?: number;
  /** The most connections to a destination of ssh_config, and to any other host that allows more than one; 16. */
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
  /** Whether its server has not answered for some time: new streams get another connection, where there may be one. */
  silent: boolean;
  /** Its traffic in both directions as last measured, in bits a second. */
  rate: number;
  bytesSent: number;
  bytesReceived: number;
}

/** ssh2's Client, and what it has beside ssh2's. */
export declare class Client extends ssh2.Client {
  /** The host, the user and the options: what `connect` was given, with ssh2's defaults and without secrets. */
  readonly config: {
    host: string;
    port: number;
    username: string | undefined;
    forceIPv4: boolean;
    forceIPv6: boolean;
    keepaliveInterval: number;
    keepaliveCountMax: number;
    readyTimeout: number;
    tryKeyboard: boolean;
  };
  /** Connects; 'ready' or 'error' follows. Throws for options that cannot be used. */
  connect(config: ConnectConfig | DestinationConfig): this;
  /** As `openssh_forwardOutStreamLocal`. */
  forwardOutStreamLocal(socketPath: string, callback: ssh2.ClientCallback): this;
  /**
   * Listens on a Unix socket of this machine ("/tmp/pg1/.s.PGSQL.5432"), and carries its clients to a TCP port or a Unix socket
   * as seen from the server. A socket in its place that nobody listens on is replaced; one in use is an error.
   */
  forwardOutLocalSocket(
    localSocketPath: string,
    dstHost: string,
    dstPort: number,
    callback: (error: SshError | undefined, forward: SocketForward) => void,
  ): this;
  forwardOutLocalSocket(
    localSocketPath: string,
    dstSocketPath: string,
    callback: (error: SshError | undefined, forward: SocketForward) => void,
  ): this;
  /** Exchanges keys anew; the engine does so by itself as often as it is needed. */
  rekey(callback?: () => void): void;
  /** The connections of this process behind the client; none where they are the daemon's. */
  lanes(): Lane[];
  /** The connections behind the client, whosever they are. */
  stats(callback: (error: SshError | undefined, stats: ConnectionStats) => void): this;
}

export interface RunOptions extends ExecOptions {
  /** The command's input; nothing, by default. */
  input?: string | Uint8Array | Readable | null;
  /** The encoding of output: "utf8"; "buffer" for Buffers. */
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
  stream(command: string, options?: ExecOptions): ClientChannel;
  /** The user's shell, on a terminal unless the window is false. */
  shell(window?: PseudoTtyOptions | false): ClientChannel;
  /** A connection from the server to a TCP port. */
  forwardOut(host: string, port: number): Promise<Tunnel>;
  /** A connection to a Unix socket of the server. */
  forwardOutStreamLocal(path: string): Promise<Tunnel>;
  /** A Unix socket of this machine whose clients are carried to a TCP port or a Unix socket as seen from the server. */
  forwardOutLocalSocket(localSocketPath: string, dstHost: string, dstPort: number): Promise<SocketForward>;
  forwardOutLocalSocket(localSocketPath: string, dstSocketPath: string): Promise<SocketForward>;
  /** An SFTP session. */
  sftp(): Promise<SFTPWrapper>;
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
