using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;
using Mqinfer;

/// <summary>What tests ask of real workers; each command prints lines that tests/clients/test_csharp_client.py reads.</summary>
internal static class Live
{
    private static readonly TimeSpan Brief = TimeSpan.FromMilliseconds(200);
    private static readonly float[] Three = { 1, 2, 5 }, Four = new float[4];

    /// <summary><c>answers URL ROOT JPEG</c>: all kinds of tensors, and each fault.</summary>
    public static async Task Answers(string url, string root, string jpeg)
    {
        var client = await Client.ConnectAsync(url, Patient(root, "asker"));
        var x = Tensor.Of("x", Three);
        var row = Tensor.Of("x", Four, 1, 4);
        var twos = Tensor.Of("x", Enumerable.Repeat(2f, 8).ToArray(), 2, 4);
        await Ask(client, "half_plus_two", "half_plus_two", new[] { x });
        await Ask(client, "version", "half_plus_two", new[] { x }, new InferOptions { Version = "123" });
        await Ask(client, "words", "words", new[] { Tensor.Strings("words", new[] { "grün", "", new string('a', 5000) }) });
        await Ask(client, "int64", "integers", new[] { Tensor.Of("big", new[] { long.MinValue, (1L << 53) + 1 }) });
        var chosen = new InferOptions { Outputs = new[] { new RequestedOutput("b") } };
        await Ask(client, "outputs", "two", new[] { Tensor.Of("a", new[] { 1, 2 }), Tensor.Of("b", new byte[] { 7, 8 }) }, chosen);
        await Ask(client, "lz4", "echo", new[] { twos.Encode("lz4") });
        await Ask(client, "shuffle", "echo", new[] { twos.Encode("shuffle-lz4") });
        await AskMask(client);
        await Ask(client, "jpeg", "picture", new[] { Tensor.Picture("picture", File.ReadAllBytes(jpeg)) });
        await Ask(client, "wrong_tensor", "half_plus_two", new[] { Tensor.Of("z", Three) });
        await Ask(client, "wrong_name", "no/model", new[] { x });
        await Ask(client, "wrong_version", "echo", new[] { row }, new InferOptions { Version = "new" });
        await Ask(client, "wrong_parameter", "echo", new[] { row }, new InferOptions { Parameters = new Parameters { { "list", new int[0] } } });
        await Ask(client, "too_large", "echo", new[] { Tensor.Of("x", new float[17000000], 4250000, 4) });
        await Ask(client, "slow", "slow", new[] { row });
        await Ask(client, "expired", "slow", new[] { row }, new InferOptions { Timeout = Brief });
        await AskCancelled(client, row);
        Print(client.Counters());
        client.Dispose();
        await Ask(client, "closed", "half_plus_two", new[] { x });
        await Crowd(url, root, row);
    }

    /// <summary><c>many URL ROOT COUNT</c>: so many requests, 64 at a time; each has to get its own result, once.</summary>
    public static async Task Many(string url, string root, int count)
    {
        ClientOptions options = Patient(root, "many");
        options.Window = 64;
        using (Client client = await Client.ConnectAsync(url, options))
        {
            int next = -1, done = 0, wrong = 0;
            var answered = new int[count];
            Func<Task> ask = async () =>
            {
                for (int number = Interlocked.Increment(ref next); number < count; number = Interlocked.Increment(ref next))
                {
                    Result result = await client.InferAsync("echo", Tensor.Of("x", Enumerable.Repeat((float)number, 4).ToArray(), 1, 4));
                    if (!result["x"].ToArray<float>().SequenceEqual(Enumerable.Repeat((float)number, 4))) Interlocked.Increment(ref wrong);
                    Interlocked.Increment(ref answered[number]);
                    int sum = Interlocked.Increment(ref done);
                    if (sum % 100 == 0) Console.WriteLine(sum);
                }
            };
            await Task.WhenAll(Enumerable.Range(0, 64).Select(each => ask()));
            Console.WriteLine("answered=" + answered.Count(each => each > 0) + " wrong=" + wrong + " twice=" + answered.Count(each => each != 1));
            Print(client.Counters());
        }
    }

    /// <summary><c>one URL ROOT NAME MODEL</c>: one request, whose reply the test forges.</summary>
    public static async Task One(string url, string root, string name, string model)
    {
        using (Client client = await Client.ConnectAsync(url, Patient(root, name)))
        {
            Console.WriteLine("connected");
            await Ask(client, "one", model, new[] { Tensor.Of("x", new float[] { 13, 13, 13, 13 }, 1, 4) });
            Print(client.Counters());
        }
    }

    /// <summary><c>watching URL ROOT MODEL COUNT</c>: so many results of others.</summary>
    public static async Task Watching(string url, string root, string model, int count)
    {
        using (Client client = await Client.ConnectAsync(url, Patient(root, "watcher")))
        using (Watch first = await client.WatchAsync(model))
        using (Watch second = await client.WatchAsync(model, 2))
        {
            Console.WriteLine("watching");
            for (; count > 0; count--)
            {
                Watched watched = await first.NextAsync();
                Tensor output = watched.Reply.Outputs[0].Decode();
                Console.WriteLine(
                    watched.Client + " " + watched.Request + " " + watched.Reply.Outcome + " " + watched.Reply.Worker + " " + Shown(output));
            }
            while (second.Counters().Received < first.Counters().Received) await Task.Yield(); // the same message, a moment later
            foreach (WatchCounters each in new[] { first.Counters(), second.Counters() })
                Console.WriteLine(
                    "received=" + each.Received + " dropped=" + each.Dropped + " malformed=" + each.Malformed + " retained=" + each.Retained);
            Task<Watched> waiting = second.NextAsync();
            await waiting;
            await second.NextAsync();
            waiting = second.NextAsync();
            second.Dispose();
            Console.WriteLine("ended " + (await waiting == null));
        }
    }

    /// <summary><c>login URL ROOT USER PASSWORD CA</c>: what comes of a right and of wrong logins.</summary>
    public static async Task Login(string url, string root, string user, string password, string ca)
    {
        await Enter("right", url, new ClientOptions { Root = root, User = user, Password = password, CaFile = ca });
        await Enter("wrong", url, new ClientOptions { Root = root, User = user, Password = "another", CaFile = ca });
        await Enter("without", url, new ClientOptions { Root = root, Name = "cs", CaFile = ca });
        TimeSpan second = TimeSpan.FromSeconds(1);
        await Enter("stranger", url, new ClientOptions { Root = root, User = user, Password = password, ConnectTimeout = second });
        string another = url.Replace("localhost", "127.1");
        await Enter("host", another, new ClientOptions { Root = root, User = user, Password = password, CaFile = ca, ConnectTimeout = second });
        await Enter("another's name", url, new ClientOptions { Root = root, User = user, Password = password, CaFile = ca, Name = "car-2" });
    }

    /// <summary><c>certificate URL ROOT CA PKCS12 PASSWORD</c>: a login by certificate.</summary>
    public static Task Certificate(string url, string root, string ca, string file, string password) => Enter(
        "certificate", url,
        new ClientOptions { Root = root, Name = "car-3", CaFile = ca, CertificateFile = file, CertificatePassword = password });

    private static ClientOptions Patient(string root, string name) => new ClientOptions
    {
        Name = name,
        Root = root,
        Patience = TimeSpan.FromSeconds(120),
        Timeout = TimeSpan.FromSeconds(240),
    };

    /// <summary>Print what came of a request.</summary>
    private static async Task Ask(Client client, string what, string model, Tensor[] inputs, InferOptions options = null)
    {
        try
        {
            Result result = await client.InferAsync(model, inputs, options);
            Console.WriteLine(what + ": " + string.Join(" ", result.Outputs.Select(Shown)));
        }
        catch (MqinferException error)
        {
            Console.WriteLine(what + ": " + error.Code + (what == "one" ? ": " + error.Message : ""));
        }
    }

    private static async Task AskMask(Client client)
    {
        byte[] mask = Enumerable.Range(0, 64 * 48).Select(place => (byte)(place % 64 < 20 ? 3 : place % 5 == 0 ? 1 : 0)).ToArray();
        var options = new InferOptions
        {
            OutputEncoding = "mask",
            Priority = 1,
            Capture = new Capture { Source = "camera", Sequence = 4 },
            Parameters = new Parameters { { "run", "one" } },
        };
        Result same = await client.InferAsync("mask", Tensor.Of("mask", mask, 1, 48, 64).Encode("mask"), options);
        Console.WriteLine("mask: " + (same["mask"].ToArray<byte>().SequenceEqual(mask) ? "same " : "other ") + same.Capture.Source);
    }

    private static async Task AskCancelled(Client client, Tensor row)
    {
        using (var source = new CancellationTokenSource())
        {
            Task<Result> task = client.InferAsync("slow", row, null, source.Token);
            source.Cancel();
            try
            {
                await task;
            }
            catch (OperationCanceledException)
            {
                Task<Result> later = client.InferAsync("slow", row, null, source.Token);
                Console.WriteLine("cancel: " + task.Status + " " + later.Status);
            }
        }
    }

    /// <summary>One client with little patience and room.</summary>
    private static async Task Crowd(string url, string root, Tensor row)
    {
        ClientOptions options = Patient(root, "hasty");
        options.Patience = TimeSpan.FromMilliseconds(100);
        options.MaxPending = 2;
        using (Client client = await Client.ConnectAsync(url, options))
        {
            await Ask(client, "unknown", "half_plus_tow", new[] { row });
            var brief = new InferOptions { Timeout = TimeSpan.FromSeconds(1) };
            Task<Result>[] crowd = Enumerable.Range(0, 3).Select(each => client.InferAsync("slow", row, brief)).ToArray();
            try
            {
                await Task.WhenAll(crowd);
            }
            catch (MqinferException)
            {
                var codes = crowd.Select(each => ((MqinferException)each.Exception.InnerException).Code);
                Console.WriteLine("crowded: " + string.Join(" ", codes));
            }
        }
    }

    private static async Task Enter(string what, string url, ClientOptions options)
    {
        if (options.CaFile == "") options.CaFile = null; // the system's authorities
        options.Patience = TimeSpan.FromSeconds(60);
        options.Timeout = TimeSpan.FromSeconds(120);
        try
        {
            using (Client client = await Client.ConnectAsync(url, options))
                Console.WriteLine(what + ": " + client.Name + " " + (await client.InferAsync("echo", Tensor.Of("x", Four, 1, 4))).Worker);
        }
        catch (MqinferException error)
        {
            Console.WriteLine(what + ": " + error.Code + " " + error.Message);
        }
    }

    private static string Shown(Tensor tensor) => tensor.Name + "=" + Values(tensor);

    private static string Values(Tensor tensor)
    {
        switch (tensor.Datatype)
        {
            case Datatype.FP32: return Listed(tensor.ToArray<float>());
            case Datatype.INT64: return Listed(tensor.ToArray<long>());
            case Datatype.UINT8: return Listed(tensor.ToArray<byte>().Take(8));
            case Datatype.BYTES:
                return string.Concat(tensor.ToStrings().Select(each => "<" + each.Substring(0, Math.Min(8, each.Length)) + ":" + each.Length + ">"));
            default: return tensor.Datatype.ToString();
        }
    }

    private static string Listed<T>(IEnumerable<T> values) =>
        string.Join(",", values.Select(each => Convert.ToString(each, CultureInfo.InvariantCulture)));

    private static void Print(Counters c) => Console.WriteLine(
        "submitted=" + c.Submitted + " pending=" + c.Pending + " in_flight=" + c.InFlight + " ok=" + c.Ok + " error=" + c.Error +
        " expired=" + c.Expired + " superseded=" + c.Superseded + " rejected=" + c.Rejected + " cancelled=" + c.Cancelled +
        " malformed=" + c.Malformed + " mismatched=" + c.Mismatched + " bad_states=" + c.BadStates + " late=" + c.Late +
        " retries=" + c.Retries);
}
