// A bare MQTT 5 client for one exchange, without the page's own code: what a browser's user could send by hand.
// Runs in the page, so that the page's origin and policy hold. Returns reason codes.
async ({ url, user, password, subscribe, publish, expect, timeoutMs }) => {
  const text = (value) => {
    const bytes = new TextEncoder().encode(value);
    return [bytes.length >> 8, bytes.length & 255, ...bytes];
  };
  const packet = (first, body) => {
    const length = [];
    let rest = body.length;
    do {
      length.push((rest & 127) | (rest > 127 ? 128 : 0));
      rest >>= 7;
    } while (rest > 0);
    return new Uint8Array([first, ...length, ...body]);
  };
  const found = { opened: false, closed: false, connack: null, suback: [], puback: [], messages: 0, bytes: 0, ms: 0 };
  let began = 0;

  return await new Promise((done) => {
    let socket;
    try {
      socket = new WebSocket(url, "mqtt");
    } catch (error) {
      done({ ...found, error: String(error) });
      return;
    }
    const finish = () => {
      clearTimeout(timer);
      socket.close();
      done(found);
    };
    const timer = setTimeout(finish, timeoutMs);
    socket.binaryType = "arraybuffer";
    socket.onclose = () => {
      found.closed = true;
      finish();
    };
    socket.onopen = () => {
      found.opened = true;
      const login = (user ? 0x80 : 0) | (password ? 0x40 : 0);
      const names = [...text(`bare-${Math.random().toString(16).slice(2)}`)];
      if (user) names.push(...text(user));
      if (password) names.push(...text(password));
      socket.send(packet(0x10, [...text("MQTT"), 5, 2 | login, 0, 60, 0, ...names]));
    };
    const next = () => {
      if (found.suback.length < subscribe.length) {
        const number = found.suback.length + 1;
        socket.send(packet(0x82, [0, number, 0, ...text(subscribe[number - 1]), 0]));
      } else if (found.puback.length < publish.length) {
        const number = found.puback.length + 1;
        socket.send(packet(0x32, [...text(publish[number - 1]), 0, number, 0, ...text("x")]));
      } else if (expect === 0) finish();
    };
    const take = (kind, body) => {
      if (kind === 2) {
        found.connack = body[1];
        if (body[1] >= 0x80) finish();
        else next();
      } else if (kind === 9) {
        found.suback.push(body[body.length - 1]);
        next();
      } else if (kind === 4) {
        found.puback.push(body.length > 2 ? body[2] : 0);
        next();
      } else if (kind === 3) {
        if (found.messages === 0) began = performance.now();
        found.messages += 1;
        found.bytes += body.length;
        found.ms = performance.now() - began;
        if (expect > 0 && found.messages >= expect) finish();
      }
    };
    const pieces = [];
    let held = 0;
    socket.onmessage = (event) => {
      pieces.push(new Uint8Array(event.data));
      held += event.data.byteLength;
      for (;;) {
        let head = pieces[0];
        if (!head) return;
        if (head.length < 5 && pieces.length > 1) {
          head = join(pieces);
          pieces.splice(0, pieces.length, head);
        }
        let size = 0;
        let at = 1;
        for (let shift = 0; ; shift += 7, at++) {
          if (at >= head.length) return;
          size += (head[at] & 127) * 2 ** shift;
          if (head[at] < 128) break;
        }
        at += 1;
        if (held < at + size) return;
        const whole = pieces.length > 1 ? join(pieces) : head;
        pieces.splice(0, pieces.length);
        if (whole.length > at + size) pieces.push(whole.subarray(at + size));
        held -= at + size;
        take(whole[0] >> 4, whole.subarray(at, at + size));
      }
    };
    const join = (parts) => {
      const whole = new Uint8Array(parts.reduce((sum, each) => sum + each.length, 0));
      let at = 0;
      for (const each of parts) {
        whole.set(each, at);
        at += each.length;
      }
      return whole;
    };
  });
};
