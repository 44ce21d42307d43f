// Builds the native module with cargo and puts it beside this package: what `npm install` runs.
//
// TRUNKLINE_PROFILE=dev builds faster and runs slower: for tests.

import { spawnSync } from 'node:child_process';
import { copyFileSync, renameSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(dirname(fileURLToPath(import.meta.url)));
const workspace = dirname(dirname(here));
const profile = process.env.TRUNKLINE_PROFILE ?? 'release';

// For tests, as the workspace's tests are built: for one package alone, cargo would compile what it depends on once more.
const packages = profile === 'dev' ? ['--workspace', '--lib'] : ['--package', 'trunkline-node'];
const cargo = spawnSync('cargo', ['build', '--locked', ...packages, '--profile', profile], {
  cwd: workspace,
  stdio: 'inherit',
});
if (cargo.error) {
  console.error(`cannot run cargo (${cargo.error.message}): install Rust, https://rustup.rs`);
  process.exit(1);
}
if (cargo.status !== 0) process.exit(cargo.status ?? 1);

const target = process.env.CARGO_TARGET_DIR ?? join(workspace, 'target');
const built = join(target, profile === 'dev' ? 'debug' : profile, 'libtrunkline_node.so');
// A process that has the old one loaded keeps it: the name moves to the new file, whose content does not change.
const placed = join(here, 'trunkline.node');
copyFileSync(built, `${placed}.new`);
renameSync(`${placed}.new`, placed);
