// What Google's Node client does, one line per step: "ok STEP" or "failed STEP: why". Arguments: URL, project, bucket.
const {OAuth2Client} = require('google-auth-library');
const {Storage} = require('@google-cloud/storage');
const crypto = require('crypto');

const [url, projectId, name] = process.argv.slice(2);
const authClient = new OAuth2Client();
authClient.setCredentials({access_token: process.env.TOKEN});
const storage = new Storage({apiEndpoint: url, projectId, authClient, useAuthWithCustomEndpoint: true});
const bucket = storage.bucket(name);
const data = crypto.randomBytes(3 << 20);

async function resumable(file, options) {
  // Of its ways to begin a session, this one sends credentials to an endpoint that is not Google's.
  const [uri] = await file.createResumableUpload();
  await file.save(data, {resumable: true, uri, ...options});
}

async function same(file, expected) {
  const [found] = await file.download();
  if (!found.equals(expected)) throw new Error(`${found.length} bytes came back`);
}

async function refused(code, promise) {
  const error = await promise.then(() => null, error => error);
  if (!error || error.code !== code) throw error || new Error('it was not refused');
}

const steps = {
  'create a bucket': () => storage.createBucket(name, {location: 'us-central1'}),
  'upload at once': () => bucket.file('simple').save(data, {resumable: false, validation: 'crc32c'}),
  'upload with an open end': () => resumable(bucket.file('open'), {}),
  'upload in chunks': () => resumable(bucket.file('chunks'), {chunkSize: 1 << 20}),
  'download': () => Promise.all(['simple', 'open', 'chunks'].map(each => same(bucket.file(each), data))),
  'gzip': async () => {
    await bucket.file('packed').save('hello'.repeat(999), {gzip: true, resumable: false});
    await same(bucket.file('packed'), Buffer.from('hello'.repeat(999)));
  },
  'metadata': async () => {
    await new Promise(done => setTimeout(done, 1100)); // a name takes one write a second
    await bucket.file('open').setMetadata({metadata: {a: 'b'}});
  },
  'list': async () => {
    const [files] = await bucket.getFiles();
    if (files.length !== 4) throw new Error(`${files.length} files`);
  },
  'copy': () => bucket.file('open').copy(bucket.file('copied')),
  'move': () => bucket.file('copied').move('moved'),
  'combine': async () => {
    await bucket.combine(['simple', 'open'], 'both');
    await same(bucket.file('both'), Buffer.concat([data, data]));
  },
  'a precondition': () =>
    refused(412, bucket.file('simple').save('x', {resumable: false, preconditionOpts: {ifGenerationMatch: 0}})),
  'a key of its own': () =>
    refused(501, bucket.file('secret', {encryptionKey: crypto.randomBytes(32)}).save('x', {resumable: false})),
  'policies': async () => bucket.iam.setPolicy((await bucket.iam.getPolicy())[0]),
  'labels': () => bucket.setLabels({a: 'b'}),
  'delete': async () => {
    await bucket.deleteFiles();
    await bucket.delete();
  },
};

(async () => {
  for (const [step, run] of Object.entries(steps)) {
    await run().then(() => console.log(`ok ${step}`), error => console.log(`failed ${step}: ${error.message}`));
  }
})();
