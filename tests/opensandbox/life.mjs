// The whole life of a sandbox with the npm SDK, as it comes from the registry. Run by test_npm_sdk.py; it ends with "ok".
import assert from "node:assert/strict";
import { Sandbox, SandboxManager, SandboxApiException } from "@alibaba-group/opensandbox";

const { DIBS_TEST_DOMAIN: domain, DIBS_TEST_KEY: apiKey, DIBS_TEST_IMAGE: image } = process.env;
const backend = process.env.DIBS_TEST_BACKEND;
const connectionConfig = { domain, apiKey, useServerProxy: process.env.DIBS_TEST_PROXY === "1" };
const extensions = { "dibs.backend": backend };
const inPod = backend === "kubernetes"; // its processes run as its own user, and it cannot be frozen
const lines = (execution) => execution.logs.stdout.map((line) => line.text);

async function until(question) {
  for (let tries = 0; tries < 600; tries++) {
    const answer = await question();
    if (answer) return answer;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error("it did not come true");
}

async function refused(promise, status, code) {
  await assert.rejects(promise, (error) => {
    assert.ok(error instanceof SandboxApiException, String(error));
    assert.equal(error.statusCode, status, error.message);
    if (code) assert.equal(error.error.code, code);
    assert.ok(error.requestId);
    return true;
  });
}

async function life() {
  const sandbox = await Sandbox.create({
    connectionConfig, image, extensions, timeoutSeconds: 600,
    resource: { cpu: "1", memory: "512Mi", gpu: "2" }, resourceRequests: { gpu: "2" },
    metadata: { purpose: "npm", odd: "a=b+c d" }, env: { GREETING: "hello" },
    entrypoint: ["sh", "-c", "echo the entrypoint speaks; exec sleep 1000"],
  });
  const info = await sandbox.getInfo();
  assert.equal(info.status.state, "Running");
  assert.equal(info.extensions["dibs.receipt"], "delivered");
  assert.equal(info.extensions["dibs.devices"].split(",").length, 2);
  assert.ok(info.expiresAt > info.createdAt);

  const { commands, files } = sandbox;
  const done = await commands.run("echo out; echo err >&2; ls /dev | grep -c simgpu");
  assert.deepEqual(lines(done), ["out", "2"]);
  assert.deepEqual(done.logs.stderr.map((line) => line.text), ["err"]);
  assert.equal(done.exitCode, 0);
  assert.equal((await commands.run("exit 3")).exitCode, 3);
  const where = { workingDirectory: "/tmp", envs: { COLOUR: "blue" } };
  assert.deepEqual(lines(await commands.run("echo $PWD $COLOUR $GREETING", where)), ["/tmp blue hello"]);
  assert.ok((await commands.run("sleep 100", { timeoutSeconds: 1 })).error);
  // An ordinary user's sandbox on `local` has that user alone.
  const alone = process.env.DIBS_TEST_BACKEND === "local" && process.getuid() !== 0;
  const [uid, gid] = alone ? [process.getuid(), process.getgid()] : [1000, 1001];
  const asOther = commands.run("id -u; id -g", { uid, gid });
  if (inPod) await refused(asOther, 400, "USER_NOT_MAPPED");
  else assert.deepEqual(lines(await asOther), [String(uid), String(gid)]);

  const begun = await commands.run("echo one; exit 4", { background: true });
  const status = await until(async () => {
    const now = await commands.getCommandStatus(begun.id);
    return now.running ? null : now;
  });
  assert.equal(status.exitCode, 4);
  const logs = await commands.getBackgroundCommandLogs(begun.id);
  assert.equal(logs.content.trim(), "one");
  const long = await commands.run("sleep 1000", { background: true });
  await commands.interrupt(long.id);
  await until(async () => !(await commands.getCommandStatus(long.id)).running);

  const session = await commands.createSession({ workingDirectory: "/tmp" });
  await commands.runInSession(session, "export MOOD=good; cd /");
  assert.deepEqual(lines(await commands.runInSession(session, "echo $MOOD $PWD")), ["good /"]);
  await commands.deleteSession(session);

  const top = "/tmp/npm";
  await files.createDirectories([{ path: `${top}/deep`, mode: 750 }]);
  await files.writeFiles([
    { path: `${top}/a.txt`, data: "one\ntwo\nthree\n", mode: 640 },
    { path: `${top}/deep/b.bin`, data: new Uint8Array([1, 2, 3, 4]) },
  ]);
  assert.equal(await files.readFile(`${top}/a.txt`), "one\ntwo\nthree\n");
  assert.equal(await files.readFile(`${top}/a.txt`, { offset: 2, limit: 1 }), "two");
  assert.deepEqual([...(await files.readBytes(`${top}/deep/b.bin`, { range: "bytes=1-2" }))], [2, 3]);
  const pieces = [];
  for await (const piece of files.readBytesStream(`${top}/deep/b.bin`)) pieces.push(...piece);
  assert.deepEqual(pieces, [1, 2, 3, 4]);
  assert.equal((await files.getFileInfo([`${top}/a.txt`]))[`${top}/a.txt`].mode, 640);
  assert.deepEqual((await files.search({ path: top, pattern: "*.bin" })).map((one) => one.path), [`${top}/deep/b.bin`]);
  assert.equal((await files.listDirectory({ path: top })).length, 2);
  await files.setPermissions([{ path: `${top}/a.txt`, mode: 600 }]);
  await files.moveFiles([{ src: `${top}/a.txt`, dest: `${top}/c.txt` }]);
  const edit = { path: `${top}/c.txt`, oldContent: "two", newContent: "2" };
  assert.equal((await files.replaceContentsDetailed([edit]))[0].replacedCount, 1);
  await files.replaceContents([{ ...edit, oldContent: "2", newContent: "zwei" }]);
  await files.deleteFiles([`${top}/c.txt`]);
  await files.deleteDirectories([`${top}/deep`]);
  assert.deepEqual(await files.listDirectory({ path: top }), []);
  await refused(files.readFile(`${top}/none`), 404);

  const metrics = await sandbox.getMetrics();
  assert.equal(metrics.cpuCount, 1);
  assert.equal(metrics.memoryTotalMiB, 512);

  const manager = SandboxManager.create({ connectionConfig });
  await sandbox.patchMetadata({ purpose: "listing" });
  const metadata = { purpose: "listing", odd: "a=b+c d" };
  const page = await manager.listSandboxInfos({ states: ["running"], metadata, pageSize: 1 });
  assert.deepEqual(page.items.map((one) => one.id), [sandbox.id]);
  assert.equal(page.pagination.hasNextPage, false);
  assert.deepEqual((await manager.listSandboxInfos({ states: ["Paused"], metadata })).items, []);

  const renewed = await sandbox.renew(3600);
  assert.ok(renewed.expiresAt > info.expiresAt);
  let resumed = sandbox;
  if (inPod) {
    await refused(sandbox.pause(), 409, "PAUSE_UNSUPPORTED");
  } else {
    await sandbox.pause();
    assert.equal((await sandbox.getInfo()).status.state, "Paused");
    await refused(sandbox.pause(), 409, "WRONG_STATE");
    resumed = await Sandbox.resume({ connectionConfig, sandboxId: sandbox.id });
  }
  assert.deepEqual(lines(await resumed.commands.run("echo awake")), ["awake"]);
  await refused(resumed.getEgressPolicy(), 501);

  await resumed.kill();
  await refused(manager.getSandboxInfo(sandbox.id), 404, "NOT_FOUND");
  await manager.close();
  await resumed.close();
  await sandbox.close();
}

async function refusals() {
  const create = (more) => Sandbox.create({ connectionConfig, image, extensions, ...more });
  await refused(create({ resource: { gpu: "0.5" } }), 400, "GPU_COUNT_INVALID");
  await refused(create({ resource: { gpu: "B200:1" } }), 409, inPod ? "CLUSTER_DEVICE_NO_MATCH" : "NO_MATCHING_DEVICE");
  await refused(create({ extensions: { ...extensions, colour: "x" } }), 400, "UNKNOWN_EXTENSION");
  await refused(create({ entrypoint: ["/no/such/program"] }), 500, "COMMAND_NOT_FOUND");
}

await life();
await refusals();
console.log("ok");
