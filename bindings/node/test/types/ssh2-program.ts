// A program as people write it for ssh2 and @types/ssh2. It is compiled against both, unchanged; see tsconfig.json beside it.

import { readFileSync } from 'node:fs';
import type { Duplex } from 'node:stream';
import {
  AnyAuthMethod, AuthenticationType, AuthHandlerMiddleware, BaseAgent, Channel, Client, ClientCallback, ClientChannel,
  ClientErrorExtensions, ClientSFTPCallback, ConnectConfig, createAgent, ExecOptions, FileEntryWithStats, IdentityCallback,
  InputAttributes, KeyboardInteractiveCallback, NegotiatedAlgorithms, OpenSSHAgent, ParsedKey, Prompt, PseudoTtyOptions,
  ReadStream, SFTPWrapper, ShellOptions, SignCallback, SigningRequestOptions, Stats, TcpConnectionDetails, TransferOptions,
  UNIXConnectionDetails, utils, VerifyCallback, WriteStream,
} from 'ssh2';

class Agent extends BaseAgent<ParsedKey> {
  constructor(private readonly key: ParsedKey) {
    super();
  }
  getIdentities(callback: IdentityCallback<ParsedKey>): void {
    callback(null, [this.key]);
  }
  sign(key: ParsedKey, data: Buffer, options: SigningRequestOptions | SignCallback, callback?: SignCallback): void {
    const done = typeof options === 'function' ? options : callback;
    const signature: Buffer | Error = this.key.sign(data, typeof options === 'function' ? undefined : options.hash);
    if (signature instanceof Error) done?.(signature);
    else done?.(null, signature);
  }
}

const parsed: ParsedKey | Error = utils.parseKey(readFileSync('key'), 'secret');
if (parsed instanceof Error) throw parsed;
const pem: string = parsed.getPrivatePEM();
const ssh: Buffer = parsed.getPublicSSH();
const made: { private: string; public: string } = utils.generateKeyPairSync('ecdsa', { bits: 256, comment: 'me' });
utils.generateKeyPair('ed25519', (error, keys) => console.log(error, keys.public, made.private, pem, ssh));

const handler: AuthHandlerMiddleware = (left: AuthenticationType[] | null, partial: boolean | null, next) => {
  const password: AnyAuthMethod = { type: 'password', username: 'me', password: 'secret' };
  next(left === null ? 'none' : partial ? password : 'agent');
};

const config: ConnectConfig = {
  host: 'example', port: 22, username: 'me', password: 'secret', privateKey: readFileSync('key'), passphrase: 'secret',
  agent: new Agent(parsed), agentForward: true, tryKeyboard: true, authHandler: handler, readyTimeout: 1000, keepaliveInterval: 1,
  keepaliveCountMax: 3, hostHash: 'sha256', hostVerifier: (hash: string) => hash.length > 0, forceIPv4: true, localAddress: '::1',
  strictVendor: true, debug: (text: string) => console.log(text),
  algorithms: { kex: ['curve25519-sha256'], cipher: ['aes128-gcm@openssh.com'], hmac: ['hmac-sha2-256'], compress: ['none'] },
};

const client: Client = new Client();
client
  .on('ready', () => console.log('ready'))
  .on('banner', (text: string) => console.log(text))
  .on('handshake', (agreed: NegotiatedAlgorithms) => console.log(agreed.kex, agreed.cs.cipher, agreed.sc.mac))
  .on('greeting', (greeting: string) => console.log(greeting))
  .on('error', (error: Error & ClientErrorExtensions) => console.error(error.level, error.description))
  .on('tcp connection', (details: TcpConnectionDetails, accept, reject) => {
    if (details.srcPort === 1) return reject();
    const channel: ClientChannel = accept();
    channel.end();
  })
  .on('unix connection', (info: UNIXConnectionDetails, accept, reject) => {
    if (info.socketPath === '') return reject();
    const channel: Channel = accept();
    channel.close();
  })
  .on('keyboard-interactive', (name: string, text: string, language: string, prompts: Prompt[], finish: KeyboardInteractiveCallback) => {
    finish(prompts.map(({ prompt, echo }) => `${name}${text}${language}${prompt}${echo}`));
  })
  .on('change password', (message: string, done) => done(message))
  .once('close', () => console.log('closed'));

const verifier: ConnectConfig['hostVerifier'] = (key: Buffer, verify: VerifyCallback) => verify(key.length > 0);
const same: Client = client.connect({ ...config, hostVerifier: verifier, agent: createAgent('/agent'), sock: undefined });
same.connect({ ...config, agent: new OpenSSHAgent('/agent') });

const options: ExecOptions = { env: process.env, pty: { rows: 1, cols: 2, term: 'xterm', modes: { ECHO: 0 } }, x11: false, allowHalfOpen: true };
const opened: ClientCallback = (error: Error | undefined, channel: ClientChannel) => {
  if (error) throw error;
  channel
    .on('exit', (code: number | null, signal?: string) => console.log(code, signal))
    .on('close', () => client.end())
    .on('data', (chunk: Buffer) => console.log(chunk.length));
  channel.stderr.on('data', (chunk: Buffer) => console.log(chunk.length));
  channel.setWindow(1, 2, 3, 4);
  channel.signal('INT');
  channel.eof();
  channel.stdin.write('x');
  const duplex: Duplex = channel;
  duplex.end('y');
  channel.close();
};
const chained: Client = client.exec('uptime', options, opened).exec('true', opened);
const window: PseudoTtyOptions = { rows: 24 };
const shell: ShellOptions = { env: { A: 'b' } };
chained.shell(opened).shell(window, opened).shell(shell, opened).shell(window, shell, opened).shell(false, opened);
client.subsys('x', opened);
client.forwardIn('', 0, (error: Error | undefined, port: number) => console.log(error, port));
client.unforwardIn('', 1, (error) => console.log(error));
client.forwardOut('a', 1, 'b', 2, opened).openssh_forwardOutStreamLocal('/s', opened).openssh_forwardInStreamLocal('/s', (error) => error);
client.openssh_unforwardInStreamLocal('/s', (error) => error).openssh_noMoreSessions((error) => error).setNoDelay(true);

const files: ClientSFTPCallback = (error: Error | undefined, sftp: SFTPWrapper) => {
  if (error) throw error;
  const transfer: TransferOptions = { concurrency: 4, chunkSize: 1024, mode: 0o600, step: (total: number, nb: number, size: number) => console.log(total, nb, size) };
  sftp.fastGet('a', 'b', transfer, (error) => console.log(error));
  sftp.fastPut('a', 'b', (error) => console.log(error));
  const read: ReadStream = sftp.createReadStream('a', { start: 1, end: 2, autoClose: true });
  const write: WriteStream = sftp.createWriteStream('b', { flags: 'w', mode: 0o600 });
  read.pipe(write);
  sftp.readFile('a', (error, data: Buffer) => console.log(error, data));
  sftp.readFile('a', { encoding: 'utf8' }, (error, data) => console.log(error, data));
  sftp.writeFile('a', 'b', (error) => console.log(error));
  sftp.appendFile('a', Buffer.from('b'), { mode: 0o600 }, (error) => console.log(error));
  sftp.exists('a', (there: boolean) => console.log(there));
  sftp.open('a', 'r', (error, handle: Buffer) => {
    sftp.read(handle, Buffer.alloc(1), 0, 1, 0, (error, count: number, bytes: Buffer, at: number) => console.log(error, count, bytes, at));
    sftp.write(handle, Buffer.alloc(1), 0, 1, 0, (error) => console.log(error));
    sftp.fstat(handle, (error, stats: Stats) => console.log(error, stats.isFile()));
    sftp.close(handle, (error) => console.log(error));
  });
  const attributes: InputAttributes = { mode: 0o600, uid: 1, gid: 2, size: 3, atime: 4, mtime: 5 };
  sftp.setstat('a', attributes, (error) => console.log(error));
  sftp.mkdir('a', attributes, (error) => console.log(error));
  sftp.readdir('a', (error, list: FileEntryWithStats[]) => console.log(error, list.map(({ filename, longname, attrs }) => [filename, longname, attrs.isDirectory()])));
  sftp.rename('a', 'b', (error) => console.log(error));
  sftp.symlink('a', 'b', (error) => console.log(error));
  sftp.readlink('a', (error, target: string) => console.log(error, target));
  sftp.realpath('a', (error, path: string) => console.log(error, path));
  sftp.ext_openssh_rename('a', 'b', (error) => console.log(error));
  sftp.ext_openssh_statvfs('a', (error, info: any) => console.log(error, info));
  sftp.utimes('a', new Date(), 1, (error) => console.log(error));
  sftp.on('close', () => console.log(utils.sftp.STATUS_CODE.EOF, utils.sftp.OPEN_MODE.READ, utils.sftp.stringToFlags('r')));
  sftp.end();
};
const last: Client = client.sftp(files);
last.destroy();
