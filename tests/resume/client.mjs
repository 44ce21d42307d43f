// Copies files both ways with the package for Node, by streams, whole files and trees.
//
//   client.mjs PACKAGE SSH_CONFIG BIG SMALL FAR BACK
import { createReadStream, createWriteStream, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pipeline } from 'node:stream/promises';
import { promisify } from 'node:util';

const [pack, config, big, small, far, back] = process.argv.slice(2);
const { Client } = createRequire(import.meta.url)(pack);
mkdirSync(back);
const client = new Client();
await new Promise((resolve, reject) => client.on('ready', resolve).on('error', reject).connect({ destination: 'nas', config, daemon: true }));
const sftp = await promisify(client.sftp.bind(client))();
const call = (name, ...words) => promisify(sftp[name].bind(sftp))(...words);

// As a stream.
await pipeline(createReadStream(big), sftp.createWriteStream(`${far}/.big`));
await call('rename', `${far}/.big`, `${far}/big`);
await pipeline(sftp.createReadStream(`${far}/big`), createWriteStream(`${back}/big`));
// File by file.
await call('mkdir', `${far}/small`);
mkdirSync(`${back}/small`);
for (const directory of readdirSync(small)) {
  await call('mkdir', `${far}/small/${directory}`);
  mkdirSync(`${back}/small/${directory}`);
  for (const name of readdirSync(`${small}/${directory}`)) {
    await call('writeFile', `${far}/small/${directory}/.new`, readFileSync(`${small}/${directory}/${name}`));
    await call('rename', `${far}/small/${directory}/.new`, `${far}/small/${directory}/${name}`);
  }
  for (const { filename } of await call('readdir', `${far}/small/${directory}`)) {
    writeFileSync(`${back}/small/${directory}/${filename}`, await call('readFile', `${far}/small/${directory}/${filename}`));
  }
}
// Whole files.
await call('fastPut', big, `${far}/whole`);
await call('fastGet', `${far}/whole`, `${back}/whole`);
client.end();
