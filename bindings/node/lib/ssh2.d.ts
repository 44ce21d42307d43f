// ssh2's interface, whose client's half is trunkline's: the types are those of @types/ssh2, under a name that no program gives
// to another package. trunkline adds the following.

import * as ssh2 from 'ssh2-types';
import type { Placement, SshError, Stdio } from './index';

export * from 'ssh2-types';

declare module 'ssh2-types' {
  interface ClientChannel {
    /** The reason why it ended, if that was not the server's word. */
    readonly failure: SshError | null;
    /** The exit status, from 'exit' on, which comes behind the output; null if a signal ended the command. */
    readonly exitCode: number | null | undefined;
    /** The signal that ended the command. */
    readonly exitSignal: string | undefined;
  }

  interface Client {
    /** Emitted when new streams go elsewhere than before. */
    on(event: 'placement', listener: (placement: Placement) => void): this;
    on(event: 'error', listener: (err: SshError) => void): this;
    once(event: 'error', listener: (err: SshError) => void): this;
  }

  interface ExecOptions {
    /** Whether the command is lent the agent; without a word, where the client is. */
    agentForward?: boolean;
    /** The source of input, and the targets of output and error output. */
    stdio?: Stdio;
  }

  interface ShellOptions {
    /** As in ExecOptions. */
    agentForward?: boolean;
  }

  interface SFTPWrapper {
    /** Looks up the home directory of a user. */
    ext_home_dir(username: string, callback: (err: Error | undefined, homeDirectory: string) => void): void;
    /** Looks up the names of users and groups by their numbers; empty where the server knows none (OpenSSH's extension). */
    ext_users_groups(
      uids: number[],
      gids: number[],
      callback: (err: Error | undefined, usernames: string[], groupnames: string[]) => void,
    ): void;
  }
}

/** A list of algorithms, or changes to the usual one, of which none is needed. */
export type AlgorithmList<T> = T[] | Partial<Record<'append' | 'prepend' | 'remove', T | RegExp | Array<T | RegExp>>>;

/** The algorithms of a connection, the first choice first. */
export interface Algorithms {
  kex?: AlgorithmList<ssh2.KexAlgorithm>;
  cipher?: AlgorithmList<ssh2.CipherAlgorithm>;
  serverHostKey?: AlgorithmList<ssh2.ServerHostKeyAlgorithm>;
  hmac?: AlgorithmList<ssh2.MacAlgorithm>;
  compress?: AlgorithmList<ssh2.CompressionAlgorithm>;
}

export type AsyncHostVerifier = (key: Buffer) => Promise<boolean>;

export interface ConnectConfig extends Omit<ssh2.ConnectConfig, 'algorithms' | 'hostVerifier'> {
  algorithms?: Algorithms;
  hostVerifier?: ssh2.ConnectConfig['hostVerifier'] | AsyncHostVerifier;
  /** The same as `host`. */
  hostname?: string;
  /** The same as `username`. */
  user?: string;
  /**
   * known_hosts files that the host key is checked against; by default the user's and the system's. A key that differs from
   * what they say is refused, and so is a host that they do not name. Only a Client whose program names no files takes such a
   * host, as ssh2 does. false: any key passes. Nothing is written.
   */
  knownHosts?: string | string[] | false;
  /** The most connections that the client may make, each with a log-in of its own; 1. The server's limit holds for each. */
  connections?: number;
}

export declare class HTTPAgent extends ssh2.HTTPAgent {
  constructor(connectCfg: ConnectConfig, agentOptions?: ssh2.HTTPAgentOptions);
}

export declare class HTTPSAgent extends ssh2.HTTPSAgent {
  constructor(connectCfg: ConnectConfig, agentOptions?: ssh2.HTTPSAgentOptions);
}

/** ssh2's server, in name: trunkline is a client, and the constructor throws. */
export declare class Server {
  private constructor();
}
