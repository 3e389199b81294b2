using System;
using System.Collections;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;
using Mqinfer;

/// <summary>Messages in the neutral words of golden.json.</summary>
internal static class Neutral
{
    public static Map Of(Request request)
    {
        var outputs = request.Outputs.Select(each => (object)Stated(new Map
        {
            { "name", each.Name }, { "encoding", each.Encoding }, { "classification", each.Classification },
        })).ToList();
        return Stated(new Map
        {
            { "id", request.Id }, { "model_name", request.ModelName }, { "model_version", request.ModelVersion },
            { "outputs", outputs }, { "timeout", request.TimeoutUs }, { "priority", request.Priority },
            { "attempt", request.Attempt }, { "response_topic", request.ResponseTopic },
            { "capture", Of(request.Capture) }, { "parameters", Of(request.Parameters) },
        });
    }

    public static Map Of(Reply reply)
    {
        Timings timings = reply.Timings;
        var error = reply.Error == null ? new Map() : new Map { { "code", reply.Error.Code }, { "message", reply.Error.Message } };
        return Stated(new Map
        {
            { "id", reply.Id }, { "model_name", reply.ModelName }, { "model_version", reply.ModelVersion },
            { "outcome", HeaderWriter.Word(reply.Outcome) }, { "error", error }, { "model_hash", reply.ModelHash },
            { "worker", reply.Worker }, { "stage", reply.Stage },
            {
                "timings", WithoutZeros(new Map
                {
                    { "client_queue", timings.ClientQueue }, { "transmission", timings.Transmission },
                    { "server_queue", timings.ServerQueue }, { "decode", timings.Decode }, { "preprocess", timings.Preprocess },
                    { "inference", timings.Inference }, { "postprocess", timings.Postprocess }, { "encode", timings.Encode },
                })
            },
            {
                "load", WithoutZeros(new Map
                {
                    { "depth", reply.Load.Depth }, { "service_time_us", reply.Load.ServiceTimeUs }, { "window", reply.Load.Window },
                })
            },
            { "attempt", reply.Attempt }, { "capture", Of(reply.Capture) }, { "parameters", Of(reply.Parameters) },
        });
    }

    public static Map Of(Tensor tensor) => new Map
    {
        { "name", tensor.Name }, { "datatype", tensor.Datatype.ToString() }, { "shape", tensor.Shape.Cast<object>().ToList() },
        { "encoding", tensor.Encoding }, { "parameters", Of(tensor.Parameters) },
    };

    public static List<object> Values(Tensor tensor)
    {
        if (tensor.Datatype == Datatype.BYTES) return tensor.ToByteStrings().Select(each => (object)Convert.ToBase64String(each)).ToList();
        return ((IEnumerable)ArrayOf(tensor)).Cast<object>().Select(Value).ToList();
    }

    /// <summary>Return a tensor that is made anew from the elements of one.</summary>
    public static Tensor Rebuilt(Tensor tensor)
    {
        long[] shape = tensor.Shape.ToArray();
        switch (tensor.Datatype)
        {
            case Datatype.BYTES: return Tensor.Strings(tensor.Name, tensor.ToByteStrings(), shape);
            case Datatype.FP16: return Tensor.Half(tensor.Name, tensor.ToArray<float>(), shape);
            case Datatype.BOOL: return Tensor.Of(tensor.Name, tensor.ToArray<bool>(), shape);
            case Datatype.FP64: return Tensor.Scalar(tensor.Name, tensor.ToArray<double>()[0]);
            default: return RebuiltNumbers(tensor, shape);
        }
    }

    public static string Hex(byte[] bytes) => string.Concat(bytes.Select(each => each.ToString("x2")));

    private static Tensor RebuiltNumbers(Tensor tensor, long[] shape)
    {
        switch (tensor.Datatype)
        {
            case Datatype.UINT8: return Tensor.Of(tensor.Name, tensor.ToArray<byte>(), shape);
            case Datatype.UINT16: return Tensor.Of(tensor.Name, tensor.ToArray<ushort>(), shape);
            case Datatype.UINT32: return Tensor.Of(tensor.Name, tensor.ToArray<uint>(), shape);
            case Datatype.UINT64: return Tensor.Of(tensor.Name, tensor.ToArray<ulong>(), shape);
            case Datatype.INT8: return Tensor.Of(tensor.Name, tensor.ToArray<sbyte>(), shape);
            case Datatype.INT16: return Tensor.Of(tensor.Name, tensor.ToArray<short>(), shape);
            case Datatype.INT32: return Tensor.Of(tensor.Name, tensor.ToArray<int>(), shape);
            case Datatype.INT64: return Tensor.Of(tensor.Name, tensor.ToArray<long>(), shape);
            default: return Tensor.Of(tensor.Name, tensor.ToArray<float>(), shape);
        }
    }

    private static Array ArrayOf(Tensor tensor)
    {
        switch (tensor.Datatype)
        {
            case Datatype.BOOL: return tensor.ToArray<bool>();
            case Datatype.UINT8: return tensor.ToArray<byte>();
            case Datatype.UINT16: return tensor.ToArray<ushort>();
            case Datatype.UINT32: return tensor.ToArray<uint>();
            case Datatype.UINT64: return tensor.ToArray<ulong>();
            case Datatype.INT8: return tensor.ToArray<sbyte>();
            case Datatype.INT16: return tensor.ToArray<short>();
            case Datatype.INT32: return tensor.ToArray<int>();
            case Datatype.INT64: return tensor.ToArray<long>();
            case Datatype.FP64: return tensor.ToArray<double>();
            default: return tensor.ToArray<float>();
        }
    }

    private static object Value(object element)
    {
        if (element is bool) return element;
        if (element is long || element is ulong) return Convert.ToString(element, CultureInfo.InvariantCulture);
        double real = Convert.ToDouble(element, CultureInfo.InvariantCulture);
        if (double.IsNaN(real)) return "NaN";
        if (double.IsInfinity(real)) return real > 0 ? "Infinity" : "-Infinity";
        return real;
    }

    private static Map Of(Capture capture) => Stated(new Map
    {
        { "source", capture.Source }, { "sequence", capture.Sequence },
        { "capture_time_ns", capture.TimeNs?.ToString(CultureInfo.InvariantCulture) }, { "frame_id", capture.FrameId },
    });

    private static Map Of(Parameters parameters)
    {
        var found = new Map();
        foreach (var each in parameters) found.Add(each.Key, each.Value);
        return found;
    }

    /// <summary>Leave out what is null or empty.</summary>
    private static Map Stated(Map map)
    {
        map.RemoveAll(each => each.Value == null || each.Value is string text && text == "" || each.Value is IList list && list.Count == 0);
        return map;
    }

    private static Map WithoutZeros(Map map)
    {
        map.RemoveAll(each => each.Value is long number && number == 0);
        return map;
    }
}
