// What Node's libraries throw. A row for each fault: what a handler has that knows no library.
import http from 'node:http';
import https from 'node:https';
import { createRequire } from 'node:module';
import axios from 'axios';
import pg from 'pg';

const ports = JSON.parse(process.env.PORTS);
const at = (name, path = '200') => `http://127.0.0.1:${ports[name]}/${path}`;
const statuses = [404, 422, 429, 500, 503];

const failure = (err) => ({
  type: err.name,
  code: err.code ?? '',
  http_status: err.response?.status ?? err.status ?? '',
  message: err.message,
});

const row = async (library, fault, call) => {
  const err = await call().then(() => null, (err) => err);
  if (!err) throw new Error(`${library}, ${fault}: nothing was thrown`);
  console.log(JSON.stringify({ library, fault, ...failure(err) }));
};

// fetch and http have no error for a status: this is the handler's own.
const statusError = (status) => Object.assign(new Error(`HTTP ${status}`), { status });

const withFetch = async (url, signal = AbortSignal.timeout(300)) => {
  const response = await fetch(url, { signal });
  if (!response.ok) throw statusError(response.status);
};

const withHttp = (url, options = { signal: AbortSignal.timeout(300) }) =>
  new Promise((resolve, reject) => {
    const request = (url.startsWith('https') ? https : http).get(url, options, (response) => {
      response.resume();
      response.statusCode < 400 ? resolve() : reject(statusError(response.statusCode));
    });
    request.on('timeout', () => request.destroy());
    request.on('error', reject);
  });

const withAxios = (url) => axios.get(url, { timeout: 300 });

const faultsOfHttp = async (library, get) => {
  await row(library, 'refused', () => get(at('refused')));
  await row(library, 'reset', () => get(at('reset')));
  await row(library, 'DNS', () => get('http://nowhere.invalid/'));
  await row(library, 'TLS', () => get(`https://127.0.0.1:${ports.tls}/200`));
  await row(library, 'timeout', () => get(at('silent')));
  for (const status of statuses) {
    await row(library, status === 422 ? 'validation' : status, () => get(at('http', status)));
  }
};

const connected = async (name = 'postgres', options = {}) => {
  const client = new pg.Client({
    host: '127.0.0.1', port: ports[name], user: 'postgres', database: 'postgres', connectionTimeoutMillis: 500, ...options,
  });
  client.on('error', () => {});
  await client.connect();
  return client;
};

const execute = async (statement, options) => {
  const client = await connected('postgres', options);
  await client.query(statement).finally(() => client.end());
};

// Each has one row and waits for the other's. One of the two gets the error.
const deadlock = async () => {
  await execute('drop table if exists pair');
  await execute('create table pair as select generate_series(1, 2) as id, 0 as n');
  const [one, two] = [await connected(), await connected()];
  const update = (client, id) => client.query('update pair set n = 1 where id = $1', [id]);
  try {
    for (const [client, id] of [[one, 1], [two, 2]]) {
      await client.query('begin');
      await update(client, id);
    }
    const rollback = (client) => async (err) => {
      await client.query('rollback');
      throw err;
    };
    const ended = [update(one, 2).catch(rollback(one)), update(two, 1).catch(rollback(two))];
    const rejected = (await Promise.allSettled(ended)).find(({ status }) => status === 'rejected');
    if (rejected) throw rejected.reason;
  } finally {
    await Promise.all([one.end(), two.end()]);
  }
};

const faultsOfSql = async () => {
  const library = 'pg';
  await row(library, 'refused', () => connected('refused'));
  await row(library, 'reset', () => connected('reset'));
  await row(library, 'DNS', () => connected('postgres', { host: 'nowhere.invalid' }));
  await row(library, 'TLS', () => connected('postgres', { ssl: { rejectUnauthorized: true } }));
  await row(library, 'timeout', () => connected('silent'));
  await row(library, 'timeout of a statement', () => execute('select pg_sleep(9)', { statement_timeout: 100 }));
  await row(library, 'timeout of a query', () => execute('select pg_sleep(1)', { query_timeout: 100 }));
  await row(library, 'shutdown', () => execute('select pg_terminate_backend(pg_backend_pid())'));
  await row(library, 'deadlock', deadlock);
  await row(library, 'validation', () => execute('create temp table t (n int not null); insert into t values (null)'));
};

const version = (name) => `${name} ${createRequire(import.meta.url)(`${name}/package.json`).version}`;
console.log(JSON.stringify({ versions: `Node ${process.versions.node}, ${['axios', 'pg'].map(version).join(', ')}` }));
await faultsOfHttp('fetch', withFetch);
await row('fetch', 'timeout, AbortController', () => {
  const controller = new AbortController();
  setTimeout(() => controller.abort(), 300);
  return withFetch(at('silent'), controller.signal);
});
await faultsOfHttp('http', withHttp);
await row('http', 'timeout, destroy()', () => withHttp(at('silent'), { timeout: 300 }));
await faultsOfHttp('axios', withAxios);
await faultsOfSql();
