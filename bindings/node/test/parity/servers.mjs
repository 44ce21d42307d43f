// Programs for ssh2 that bring a server of their own, which does what OpenSSH's does not. Each is run on ssh2 and on trunkline.

import { once } from 'node:events';
import { setTimeout } from 'node:timers/promises';

import { shown } from './programs.mjs';

const called = (target, method, ...given) => new Promise((resolve) => target[method](...given, (...told) => resolve(told)));
const closed = (emitter) => new Promise((resolve) => emitter.once('close', resolve));

/** A client, and what it tells. */
function heard(ssh2, events) {
  const client = new ssh2.Client();
  for (const event of ['ready', 'end', 'close']) client.on(event, () => events.push(event));
  client.on('error', (error) => events.push(shown(error)));
  return client;
}

/** Lets everybody in; returns what it is asked for outside of channels. */
const lettingIn = (more) => (connection) => {
  connection.on('authentication', (context) => context.accept()).on('ready', () => more(connection));
};

/** @type {Record<string, (given: any) => Promise<void>>} with `serve(onConnection, options)`, which returns where to connect */
export const onOwnServer = {
  'a banner, while the program thinks about how to log in': async ({ ssh2, see, serve }) => {
    const where = await serve(lettingIn((connection) => connection.end()), { banner: 'Be good' });
    const events = [];
    const client = heard(ssh2, events);
    let decide;
    client.on('banner', (text) => {
      events.push(text.trim());
      decide('password');
    });
    client.connect({ ...where, authHandler: (_methods, _partial, next) => void (decide = next) });
    await closed(client);
    see(events);
  },
  'a server that lets in and ends at once': async ({ ssh2, see, serve }) => {
    const where = await serve(lettingIn((connection) => connection.end()));
    for (let times = 0; times < 5; times += 1) {
      const events = [];
      const client = heard(ssh2, events);
      client.connect(where);
      await closed(client);
      see(events);
    }
  },
  'a server that ends while the program thinks about how to log in': async ({ ssh2, see, serve }) => {
    const where = await serve((connection) => connection.once('handshake', () => setTimeout(20).then(() => connection.end())));
    const events = [];
    const client = heard(ssh2, events);
    client.connect({ ...where, authHandler: () => {} });
    await closed(client);
    see(events.filter((event) => event === 'ready' || event === 'close'));
  },
  'what a server hears of a refused host key': async ({ ssh2, see, serve }) => {
    const told = [];
    const ended = [];
    const where = await serve((connection) => {
      connection.on('error', (error) => told.push([error.message, error.code])).on('ready', () => told.push('ready'));
      ended.push(closed(connection));
    });
    for (const hostVerifier of [() => false, (_key, answer) => void setImmediate(answer, false)]) {
      const events = [];
      const client = heard(ssh2, events);
      client.connect({ ...where, hostVerifier });
      await closed(client);
      see(events[0]);
    }
    await Promise.all(ended);
    see(told);
  },
  'what a server hears of a log-in that is given up': async ({ ssh2, see, serve }) => {
    const told = [];
    let ended;
    const where = await serve((connection) => {
      connection.on('authentication', (context) => context.reject(['password'])).on('error', (error) => told.push(error.message));
      connection.on('end', () => told.push('end'));
      ended = closed(connection);
    });
    const client = heard(ssh2, []);
    client.connect({ ...where, password: 'wrong' });
    await closed(client);
    await ended;
    see(told);
  },
  'steps of a log-in, in order': async ({ ssh2, see, original, serve, pairs }) => {
    const [rsa] = pairs;
    const steps = [];
    const where = await serve((connection) => connection.on('authentication', (context) => {
      steps.push(`server: ${context.method}${context.signature ? ' signed' : ''}`);
      if (context.method === 'password') return context.accept();
      if (context.method === 'publickey') return context.signature ? context.reject(['password'], true) : context.accept();
      return context.reject(['publickey']);
    }), { algorithms: { serverHostKey: ['ssh-ed25519'] } });
    const client = heard(ssh2, steps);
    const plan = ['none', 'publickey', 'password'];
    client.connect({ ...where, privateKey: rsa.private, authHandler: (methods, partial) => {
      steps.push([methods, partial]);
      return plan.shift() ?? false;
    } });
    await once(client, 'ready');
    client.end();
    await closed(client);
    see(steps, original.utils.parseKey(rsa.private).type);
  },
  'a partial success for a key that was only shown': async ({ ssh2, see, serve, pairs }) => {
    const steps = [];
    const where = await serve((connection) => connection.on('authentication', (context) => {
      steps.push(`server: ${context.method}`);
      return context.method === 'password' ? context.accept() : context.reject(['password'], true);
    }));
    const client = heard(ssh2, steps);
    const plan = ['publickey', 'password'];
    client.connect({ ...where, privateKey: pairs[0].private, authHandler: (methods, partial) => {
      steps.push([methods, partial]);
      return plan.shift() ?? false;
    } });
    await once(client, 'ready');
    client.end();
    await closed(client);
    see(steps);
  },
  'answers in the form of a text': async ({ ssh2, see, serve }) => {
    const answered = [];
    const where = await serve((connection) => connection.on('authentication', (context) => {
      if (context.method !== 'keyboard-interactive') return context.reject(['keyboard-interactive']);
      const prompts = ['One: ', 'Two: '].map((prompt) => ({ prompt, echo: false }));
      return context.prompt(prompts, 'title', 'words', (answers) => {
        answered.push(answers);
        context.accept();
      });
    }));
    const client = heard(ssh2, []);
    client.on('keyboard-interactive', (_name, _instructions, _language, _prompts, finish) => finish('ab'));
    client.connect({ ...where, tryKeyboard: true });
    await once(client, 'ready');
    client.end();
    see(answered);
  },
  'a new size without a terminal': async ({ ssh2, see, serve }) => {
    const where = await serve(lettingIn((connection) => connection.on('session', (accept) => {
      const session = accept();
      let stream;
      session.on('exec', (accept) => void (stream = accept()));
      session.on('window-change', (accept, _reject, { cols, rows, width, height }) => {
        see(cols, rows, width, height);
        accept?.();
        stream.exit(0);
        stream.end();
      });
    })));
    const client = heard(ssh2, []);
    client.connect(where);
    await once(client, 'ready');
    const [, stream] = await called(client, 'exec', 'x');
    stream.resume().setWindow(30, 100, 300, 1000);
    see(await new Promise((resolve) => stream.on('close', (...told) => resolve(told))));
    client.end();
  },
  'connections that nobody asked for': async ({ ssh2, see, serve }) => {
    const opened = [];
    let done;
    const all = new Promise((resolve) => (done = resolve));
    const where = await serve(lettingIn((connection) => connection.on('request', async (accept, _reject, name, info) => {
      if (name !== 'tcpip-forward') return accept?.();
      accept(31337);
      for (const [address, port] of [['good', 31337], ['bad', 31337], ['good', 31338]]) {
        const [error] = await called(connection, 'forwardOut', address, port, 'remote', 12345);
        opened.push([info.bindAddr, address, port, error === undefined]);
      }
      return done();
    })));
    const client = heard(ssh2, []);
    const offered = [];
    client.on('tcp connection', (details, accept) => {
      offered.push(details);
      accept();
    });
    client.connect(where);
    await once(client, 'ready');
    see(await called(client, 'forwardIn', 'good', 0));
    await all;
    see(opened, offered);
    client.end();
  },
  'port 0 of a server of old, and what it hears at the end': async ({ ssh2, see, serve }) => {
    const asked = [];
    const where = await serve(lettingIn((connection) => connection.on('request', (accept, _reject, name, info) => {
      asked.push([name, info.bindAddr, info.bindPort]);
      accept(1337);
      connection.forwardOut('good', 0, 'remote', 12345, (error) => asked.push(error?.message));
    })), { ident: 'OpenSSH_5.3' });
    const client = heard(ssh2, []);
    client.connect(where);
    await once(client, 'ready');
    const connected = new Promise((resolve) => client.on('tcp connection', (details, accept) => {
      accept();
      resolve(details);
    }));
    see(await called(client, 'forwardIn', 'good', 0), await connected);
    const ended = closed(client);
    client.end();
    await ended;
    see(asked);
  },
  'several requests at once, answered one after the other': async ({ ssh2, see, serve }) => {
    const waiting = [];
    const where = await serve(lettingIn((connection) => connection.on('request', (accept, reject, _name, info) => {
      waiting.push(() => (info.bindAddr === 'no' ? reject() : accept(info.bindPort || 4711)));
      if (waiting.length === 4) for (const answer of waiting) answer();
    })));
    const client = heard(ssh2, []);
    client.connect(where);
    await once(client, 'ready');
    see(await Promise.all([['a', 0], ['no', 0], ['b', 5], ['no', 6]].map((place) => called(client, 'forwardIn', ...place).then(([error, port]) => [error && error.message, port]))));
    client.end();
    await closed(client);
  },
  'callbacks and options in every form': async ({ ssh2, see, serve }) => {
    const where = await serve(lettingIn((connection) => connection.on('session', (accept) => {
      const session = accept();
      const asked = [];
      session.on('pty', (accept, _reject, { cols, rows }) => {
        asked.push(`pty ${cols}x${rows}`);
        accept?.();
      }).on('env', (accept, _reject, { key, val }) => {
        asked.push(`${key}=${val}`);
        accept?.();
      });
      const run = (what) => (accept) => {
        const stream = accept();
        stream.write([...asked.sort(), what].join(' '));
        stream.exit(0);
        stream.end();
      };
      session.on('exec', (accept, _reject, { command }) => run(command)(accept)).on('shell', run('shell'));
    })));
    const client = heard(ssh2, []);
    client.connect(where);
    await once(client, 'ready');
    const options = [{}, { pty: true }, { pty: { cols: 9, rows: 8 } }, { pty: false }, { env: { A: '1' } }, { env: { A: '1' }, pty: true }];
    const calls = [
      ['exec', 'plain'], ...options.map((each) => ['exec', 'with', each]),
      ['shell'], ['shell', false], ['shell', undefined], ['shell', null], ['shell', {}], ['shell', { cols: 9, rows: 8 }], ['shell', { env: { A: '1' } }],
      ['shell', false, { env: { A: '1' } }], ['shell', { cols: 9, rows: 8 }, { env: { A: '1' } }], ['shell', { pty: true }],
    ];
    for (const [method, ...given] of calls) {
      let [error, stream] = [];
      try {
        [error, stream] = await called(client, method, ...given);
      } catch (thrown) {
        see(method, given, 'throws', thrown.constructor.name);
        continue;
      }
      let text = '';
      stream?.on('data', (chunk) => (text += chunk));
      see(method, given, error, stream && (await new Promise((resolve) => stream.on('close', (...told) => resolve(told)))), text);
    }
    client.end();
    await closed(client);
  },
  'a file that cannot be written to its end': async ({ ssh2, see, serve }) => {
    let left;
    const where = await serve(lettingIn((connection) => connection.on('session', (accept) => accept().on('sftp', (accept) => {
      const sftp = accept();
      sftp.on('OPEN', (id) => sftp.handle(id, Buffer.from('file')));
      sftp.on('FSETSTAT', (id) => sftp.status(id, 0)).on('FSTAT', (id) => sftp.status(id, 8)).on('CLOSE', (id) => sftp.status(id, 0));
      sftp.on('WRITE', (id) => sftp.status(id, left-- > 0 ? 0 : 4, 'disk full'));
    }))));
    const client = heard(ssh2, []);
    client.connect(where);
    await once(client, 'ready');
    const [, sftp] = await called(client, 'sftp');
    for (const [pieces, taken] of [[1, 0], [3, 1], [3, 2]]) {
      left = taken;
      const events = [];
      const file = sftp.createWriteStream('/file');
      const ended = closed(file);
      for (const event of ['finish', 'close']) file.on(event, () => events.push(event));
      file.on('error', (error) => events.push(shown(error, 'code')));
      for (let piece = 1; piece < pieces; piece += 1) file.write(Buffer.alloc(1000));
      file.end(Buffer.alloc(1000));
      await ended;
      await setTimeout(50);
      see(events);
    }
    client.end();
  },
};
