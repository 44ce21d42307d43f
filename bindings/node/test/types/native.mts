// Checked by tsc only: what a program in TypeScript can write.

import trunkline, { Client, connect, type SshError } from 'trunkline';

const client = new Client();
client.on('error', (error: SshError) => console.log(error.level, error.code, error.execution));
client.on('tcp connection', (details, accept) => accept().end(`from ${details.srcPort}`));
client.connect({ host: 'db1', username: 'monitor', hostVerifier: (key: Buffer) => key.length > 0 });
client.exec('uptime', { pty: { rows: 24 } }, (error, channel) => {
  if (error) return;
  channel.on('exit', (code) => console.log(code));
  channel.stderr.resume();
});

export async function example(): Promise<string> {
  const connection = await connect({ host: 'db1', username: 'monitor' });
  for await (const chunk of connection.stream('tail -F log')) console.log(chunk);
  const binary: Buffer = (await connection.run('cat', { encoding: 'buffer' })).stdout;
  await connection.close();
  // @ts-expect-error a port is a number
  await trunkline.connect({ host: 'db1', port: '22' });
  return binary.toString() + (await connection.run('true')).stdout;
}

export async function ofSshConfig(): Promise<void> {
  const connection = await connect('db1', { config: '/etc/monitor/ssh_config', daemon: 'auto', options: { ConnectTimeout: 5 } });
  connection.client.on('placement', ({ apart, lanes }) => console.log(apart, lanes.length));
  connection.client.exec('tail -F log', { stdio: ['ignore', '/run/db1.fifo', 2] }, () => {});
  const { daemon, lanes } = await connection.stats();
  console.log(daemon, lanes.map((lane) => lane.rate));
  // @ts-expect-error there is no such stream
  connection.stream('true', { stdio: [{}] });
}
