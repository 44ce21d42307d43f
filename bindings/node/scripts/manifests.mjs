// Writes the manifests of what npm installs without a compiler: this package, and a package with the native module alone, which
// npm chooses by system and processor.
//
//   node manifests.mjs VERSION CPU MAIN-DIRECTORY NATIVE-DIRECTORY

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const [version, cpu, mainDirectory, nativeDirectory] = process.argv.slice(2);
const source = readFileSync(new URL('../package.json', import.meta.url), 'utf8');
const main = JSON.parse(source);
// Nothing is built on installation, and nothing is tested.
for (const key of ['scripts', 'devDependencies', 'overrides']) delete main[key];
const native = {
  name: `@trunkline/linux-${cpu}-gnu`,
  version,
  description: `The native module of trunkline, for Linux with glibc on ${cpu}`,
  license: main.license,
  engines: main.engines,
  os: ['linux'],
  cpu: [cpu],
  libc: ['glibc'],
  main: 'trunkline.node',
  files: ['trunkline.node', 'LICENSES-THIRD-PARTY'],
};

function write(directory, manifest) {
  writeFileSync(join(directory, 'package.json'), `${JSON.stringify(manifest, null, 2)}\n`);
}

write(mainDirectory, { ...main, version, files: ['lib'], optionalDependencies: { [native.name]: version } });
write(nativeDirectory, native);
