#include "shared/hf/file_kind.h"

#include <fnmatch.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/text.h"

struct bytes {
    const char *text;
    size_t count;
};
#define BYTES(s) \
    { s, sizeof s - 1 }
#define MAGICS 7

// ---------------------------------------------------------------- tests where the first bytes are not enough
// In compressed data all byte values occur equally often: 256 bytes have about 162 different values. Text and tokens have
// far fewer.
static bool is_flat(const unsigned char *p, size_t n) {
    bool seen[256] = {0};
    int values = 0;
    for (size_t i = 0; i < 256 && i < n; i++) {
        values += !seen[p[i]];
        seen[p[i]] = true;
    }
    return n >= 256 && values > 144;
}

// A TFRecord begins with a record's length and the masked CRC-32C of the length (RFC 3720, B.4).
static bool is_tfrecord(const unsigned char *p, size_t n) {
    uint32_t crc = UINT32_MAX, wanted;
    if (n < 12) return false;
    for (int bit = 0; bit < 64; bit++)
        crc = crc >> 1 ^ (((crc ^ (uint32_t)(p[bit / 8] >> bit % 8)) & 1) ? UINT32_C(0x82f63b78) : 0);
    crc = ~crc;
    crc = (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
    memcpy(&wanted, p + 8, sizeof wanted);
    return crc == wanted;
}

// | u32 samples | u32 offset of each, and of the end | JSON with the columns | samples |
static bool is_mds(const unsigned char *p, size_t n) {
    uint32_t samples = 0, first = 0;
    if (n < 8) return false;
    memcpy(&samples, p, sizeof samples);
    memcpy(&first, p + 4, sizeof first);
    uint64_t columns = 4 * ((uint64_t)samples + 2);
    return samples && columns < first && columns + 2 < n && !memcmp(p + columns, "{\"", 2);
}

static bool has_control(const unsigned char *p, size_t n) {
    for (size_t i = 0; i < n && i < FILE_KIND_HEAD; i++)
        if (p[i] < '\t') return true;
    return false;
}

// JSON Lines: the first line is an object, and the next line begins another.
static bool is_json_lines(const unsigned char *p, size_t n) {
    const unsigned char *end = memchr(p, '\n', n), *last = end;
    while (last && last > p && (last[-1] == '\r' || last[-1] == ' ')) last--;
    return last && last > p && last[-1] == '}' && end + 1 < p + n && end[1] == '{';
}

// In the advice, {} is the path, {-} the path without its extension (.txt stays) and {/} its directory. Each is
// quoted as one word of a shell command.
struct file_kind {
    struct bytes magic[MAGICS];  // one of them is at offset `at`
    size_t at;
    struct bytes inside;  // must also occur somewhere in the first bytes; count 0: no such condition
    bool (*also)(const unsigned char *bytes, size_t count);  // a further test; NULL: none
    const char *names;  // patterns of names, separated by blanks; NULL: only the bytes count
    const char *what;
    const char *model, *data;  // advice; NULL: none
    bool text;                 // the file is read as text anyway; `data` tells how to extract only its texts
};

#define PANDAS(read)                                                                                           \
    "take its column of texts (here \"text\"):\n    python3 -c \"import sys, pandas; [print(t, end='\\n\\n') " \
    "for t in pandas." read "(sys.argv[1])['text']]\" {} > {-}.txt"
#define UNPACK(command)   "unpack it:\n    " command "\nand name what comes out of it"
#define AS_TEXT(encoding) "convert it:\n    iconv -f " encoding " -t UTF-8 {} > {-}.utf8.txt"
#define NO_TEXT           "it is no text to train on; extract its text first"
#define TRANSFORMERS(more)                                                                                       \
    "make safetensors of it:\n    python3 -c \"import sys; from transformers import AutoModelForCausalLM as A; " \
    "A.from_pretrained(sys.argv[1]" more ").save_pretrained(sys.argv[1])\" {/}"
#define ARRAY(read)                                                                                          \
    "where it holds token ids, write them bare and give them a header (uint32 where ids are above 65535):\n" \
    "    python3 -c \"import sys, numpy, pickle; numpy.array(" read                                          \
    ").astype('uint16').tofile(sys.argv[2])\" {} {-}.u16\n    starring data wrap --type uint16 {-}.u16 {-}.tokens.bin"
#define PICKLE                ARRAY("pickle.load(open(sys.argv[1], 'rb'))")
#define NOT_A_TEXT_OF_WEIGHTS "these are weights, not data: name a text or a file of tokens"
#define AS_PUBLISHED          "take the Hugging Face directory of the model, which has config.json and safetensors"

// Several formats are zip files: the name of the first entry, after the zip header, distinguishes them. Rows with more
// conditions come before rows with fewer.
// clang-format off
static const struct file_kind kinds[] = {
    // ---- files that may stand in for any other
    {.magic = {BYTES("version https://git-lfs.github.com/spec/")}, .what = "a pointer of Git LFS, not the file itself",
     .model = "fetch the file: (cd {/} && git lfs pull)", .data = "fetch the file: (cd {/} && git lfs pull)"},

    {.magic = {BYTES("<!DOCTYPE html"), BYTES("<!doctype html"), BYTES("<html"), BYTES("Entry not found"), BYTES("Access to model"), BYTES("Invalid username"),
               BYTES("{\"error\":")},
     .what = "an answer of a web server, not the file itself",
     .model = "fetch it again (hf download OWNER/NAME --local-dir {/}; hf auth login first where its owner wants to know who you are)"},

    {.names = "*.incomplete *.part *.partial *.aria2 *.crdownload *.download *.downloading *.filepart", .what = "a file whose download did not end",
     .model = "fetch the model again, to its end (hf download OWNER/NAME --local-dir DIR goes on where it stopped)",
     .data = "fetch it again, to its end"},

    // ---- models
    {.names = "adapter_model.bin", .what = "a LoRA adapter that peft has saved as a pickle",
     .model = "save it as safetensors:\n    python3 -c \"import sys; from peft import AutoPeftModelForCausalLM as A; "
              "A.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])\" {/} ADAPTER\nand give --model ADAPTER"},
    {.names = "adapter_config.json adapter_model.safetensors", .what = "a part of a LoRA adapter",
     .model = "give --model the adapter's directory, which has both adapter_config.json and adapter_model.safetensors"},
    {.names = "model_index.json", .what = "a diffusers pipeline, which makes pictures",
     .model = "name a directory of a language model"},
    {.names = "zero_pp_rank_* bf16_zero_pp_rank_* mp_rank_*_model_states.pt global_step* zero_to_fp32.py",
     .what = "a checkpoint of DeepSpeed", .model = "gather its shards in the folder that has zero_to_fp32.py and `latest`:\n"
     "    python3 zero_to_fp32.py . OUT --safe_serialization\ncopy the model's config.json to OUT, and give --model OUT"},
    {.names = "*.distcp .metadata", .what = "a distributed checkpoint of PyTorch (FSDP)",
     .model = "make one file of it:\n    python3 -m torch.distributed.checkpoint.format_utils dcp_to_torch {/} OUT.pt\nload that in the "
              "program it was trained with, and save the model there with save_pretrained"},
    {.names = "latest_checkpointed_iteration.txt iter_[0-9]*", .what = "a checkpoint of Megatron-LM",
     .model = "convert it to Hugging Face's format with Megatron's tools/checkpoint/convert.py"},
    {.names = "consolidated.*.pth", .what = "weights in Meta's own format",
     .model = "take the model's Hugging Face version, or make it with transformers' convert_llama_weights_to_hf.py"},
    {.names = "consolidated.safetensors consolidated-*.safetensors", .what = "weights in Mistral's own names (beside params.json)",
     .model = "take the files that lie in the same repository of the hub as config.json and model*.safetensors, or make them with transformers' "
              "models/mistral/convert_mistral_weights_to_hf.py", .data = NOT_A_TEXT_OF_WEIGHTS},
    {.names = "pytorch_model*.bin pytorch_model.bin.index.json", .what = "PyTorch's weights, a pickle, which this program does not read",
     .model = TRANSFORMERS(""), .data = NOT_A_TEXT_OF_WEIGHTS},
    {.magic = {BYTES("\x89HDF\r\n\x1a\n")}, .names = "tf_model*.h5 *.h5 *.hdf5", .what = "HDF5, as TensorFlow and Keras keep weights",
     .model = TRANSFORMERS(", from_tf=True"), .data = "export its texts or its tokens first"},
    {.names = "flax_model*.msgpack *.msgpack", .what = "weights of Flax", .model = TRANSFORMERS(", from_flax=True"), .data = NOT_A_TEXT_OF_WEIGHTS},
    {.magic = {BYTES("GGUF")}, .names = "*.gguf", .what = "a GGUF file of llama.cpp",
     .model = "take the Hugging Face directory that it was made of (config.json and safetensors)", .data = NOT_A_TEXT_OF_WEIGHTS},
    {.magic = {BYTES("\xc6\xd7\x34\x01"), BYTES("\xa3\xd9\x34\x01")}, .what = "a model of llm.c",
     .model = "take the Hugging Face directory of the model (hf download openai-community/gpt2 --local-dir gpt2), which llm.c made it of",
     .data = "these are weights of llm.c, not data: name a .bin of tokens, which its dev/data scripts write"},
    {.magic = {BYTES("\x8f\xd8\x34\x01"), BYTES("\xc7\xd7\x34\x01"), BYTES("\xc8\xd7\x34\x01")}, .what = "llm.c's state or tokenizer", .model = "take the Hugging Face directory of the model",
     .data = "it holds no data: name a .bin of tokens, which llm.c's dev/data scripts write"},
    {.magic = {BYTES("\0\0\0\0{\"")}, .at = 4, .names = "*.safetensors", .what = "a file of weights, which its model's config.json belongs to",
     .model = "give --model the directory that has both: {/}", .data = "these are weights, not data: --model reads the directory they lie in"},
    {.names = "*.onnx", .what = "an ONNX model, which cannot be trained here", .model = "take the Hugging Face directory that it was exported from",
     .data = NOT_A_TEXT_OF_WEIGHTS},
    {.names = "snapshots", .what = "the hub's cache, not a model's directory", .model = "give --model the folder of one version in {}"},

    // ---- packed files
    {.magic = {BYTES("PK\3\4")}, .inside = BYTES("/data.pkl"), .names = "*.pt *.pth *.ckpt", .what = "a file of torch.save, which this program does not read",
     .model = "load it in the program that wrote it, and save the model there with save_pretrained",
     .data = ARRAY("__import__('torch').load(sys.argv[1])")},
    {.magic = {BYTES("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46")}, .what = "a file of torch.save, which this program does not read",
     .model = "load it in the program that wrote it, and save the model there with save_pretrained",
     .data = ARRAY("__import__('torch').load(sys.argv[1])")},
    {.magic = {BYTES("PK\3\4")}, .inside = BYTES(".npy"), .names = "*.npz", .what = "NumPy's npz, several arrays",
     .model = "take the model's Hugging Face directory", .data = ARRAY("next(iter(numpy.load(sys.argv[1]).values()))")},
    {.magic = {BYTES("PK\3\4")}, .inside = BYTES("[Content_Types].xml"), .names = "*.docx *.xlsx *.pptx", .what = "a document of Office", .data = "save it as plain text (UTF-8)"},
    {.magic = {BYTES("PK\3\4")}, .inside = BYTES("mimetype"), .names = "*.epub *.odt", .what = "an e-book or a document", .data = "save it as plain text (UTF-8)"},
    {.magic = {BYTES("PK\3\4"), BYTES("PK\5\6")}, .names = "*.zip", .what = "a zip archive", .model = UNPACK("unzip {}"), .data = UNPACK("unzip {}")},
    {.magic = {BYTES("\x1f\x8b\x08")}, .names = "*.tar.gz *.tgz *.gz", .what = "compressed with gzip",
     .model = UNPACK("gunzip -k {}"), .data = UNPACK("gunzip -k {}")},
    {.magic = {BYTES("\x28\xb5\x2f\xfd"), BYTES("\x22\xb5\x2f\xfd")}, .names = "*.zst", .what = "compressed with Zstandard",
     .model = UNPACK("zstd -d {}"), .data = UNPACK("zstd -d {}")},
    {.magic = {BYTES("\x2a\x4d\x18")}, .at = 1, .what = "compressed, behind a frame to be skipped, with Zstandard (pzstd) or LZ4", .model = UNPACK("zstd -d {} -o {-}.unpacked"),
     .data = UNPACK("zstd -d {} -o {-}.unpacked")},
    {.magic = {BYTES("\xfd" "7zXZ\0")}, .names = "*.xz", .what = "compressed with xz", .model = UNPACK("xz -dk {}"), .data = UNPACK("xz -dk {}")},
    {.magic = {BYTES("BZh")}, .inside = BYTES("1AY&SY"), .names = "*.bz2", .what = "compressed with bzip2", .model = UNPACK("bunzip2 -k {}"), .data = UNPACK("bunzip2 -k {}")},
    {.magic = {BYTES("\x5d\0\0")}, .also = is_flat, .names = "*.lzma", .what = "compressed with LZMA", .model = UNPACK("xz -dk --format=lzma {}"),
     .data = UNPACK("xz -dc --format=lzma {} > {-}.unpacked")},
    {.magic = {BYTES("\x78\x01"), BYTES("\x78\x5e"), BYTES("\x78\x9c"), BYTES("\x78\xda")}, .also = is_flat, .names = "*.zlib *.zz",
     .what = "compressed with zlib", .data = UNPACK("python3 -c \"import sys, zlib; sys.stdout.buffer.write(zlib.decompress(open(sys.argv[1], 'rb').read()))\" {} > {-}.unpacked")},
    {.magic = {BYTES("\xff\x06\0\0sNaPpY")}, .names = "*.sz *.snappy", .what = "compressed with Snappy", .data = UNPACK("python3 -m snappy -d {} {-}.unpacked")},
    {.names = "*.br", .what = "compressed with Brotli", .data = UNPACK("brotli -dk {}")},
    {.magic = {BYTES("\x04\x22\x4d\x18"), BYTES("\x02\x21\x4c\x18")}, .names = "*.lz4", .what = "compressed with LZ4", .data = UNPACK("lz4 -d {}")},
    {.magic = {BYTES("\x1f\x9d\x90")}, .names = "*.Z", .what = "compressed with compress", .data = UNPACK("uncompress -k {}")},
    {.magic = {BYTES("7z\xbc\xaf\x27\x1c")}, .names = "*.7z", .what = "a 7-Zip archive", .data = UNPACK("7z x {}")},
    {.magic = {BYTES("Rar!\x1a\x07")}, .names = "*.rar", .what = "a RAR archive", .data = UNPACK("unrar x {}")},
    {.magic = {BYTES("ustar\0"), BYTES("ustar  ")}, .at = 257, .names = "*.tar", .what = "a tar archive", .model = UNPACK("tar -xf {}"), .data = UNPACK("tar -xf {}")},

    // ---- tables and arrays
    {.magic = {BYTES("PAR1")}, .names = "*.parquet", .what = "a Parquet table", .data = PANDAS("read_parquet")},
    {.magic = {BYTES("ARROW1"), BYTES("FEA1")}, .names = "*.feather", .what = "an Arrow table", .data = PANDAS("read_feather")},
    {.magic = {BYTES("ORC")}, .also = has_control, .names = "*.orc", .what = "an ORC table", .data = PANDAS("read_orc")},
    {.magic = {BYTES("\xff\xff\xff\xff")}, .inside = BYTES("\0\0\x0a\0"), .names = "*.arrow", .what = "an Arrow stream, as datasets keeps it",
     .data = "take its column of texts (here \"text\"):\n    python3 -c \"import sys, pyarrow as p; [print(t, end='\\n\\n') for t in "
             "p.ipc.open_stream(sys.argv[1]).read_all()['text'].to_pylist()]\" {} > {-}.txt"},
    {.magic = {BYTES("\x93NUMPY")}, .names = "*.npy", .what = "an array of NumPy", .model = "take the model's Hugging Face directory", .data = ARRAY("numpy.load(sys.argv[1])")},
    {.magic = {BYTES("(lp0\n"), BYTES("(lp1\n"), BYTES("(dp0\n"), BYTES("(dp1\n"), BYTES("ccopy_reg\n"), BYTES("cnumpy"), BYTES("c__builtin__\n")},
     .what = "a pickle of Python", .model = "load it in the program that wrote it, and save the model there with save_pretrained", .data = PICKLE},
    // Two bytes alone would also match 16-bit tokens.
    {.magic = {BYTES("\x80\x02]q"), BYTES("\x80\x02}q"), BYTES("\x80\x02" "c"), BYTES("\x80\x03]q"), BYTES("\x80\x03}q"), BYTES("\x80\x03" "c")}, .what = "a pickle of Python",
     .model = "load it in the program that wrote it, and save the model there with save_pretrained", .data = PICKLE},
    {.magic = {BYTES("\x80\x04\x95"), BYTES("\x80\x05\x95")}, .inside = BYTES("\0\0\0\0"), .names = "*.pkl *.pickle", .what = "a pickle of Python",
     .model = "load it in the program that wrote it, and save the model there with save_pretrained", .data = PICKLE},
    {.magic = {BYTES("MMIDIDX\0\0")}, .names = "*.idx", .what = "Megatron's index of a token file", .data = "name the .bin beside it: {-}.bin"},
    {.magic = {BYTES("\x8a\xd8\x34\x01")}, .what = "llm.c's file of multiple-choice questions", .data = "they are no text to train on: name a file of tokens"},
    {.magic = {BYTES("SQLite format 3\0")}, .names = "*.sqlite *.db", .what = "a database of SQLite", .data = "select its texts: sqlite3 {} 'select text from TABLE' > {-}.txt"},
    {.magic = {BYTES("Obj\x01")}, .names = "*.avro", .what = "an Avro table", .data = "write its texts into a file of text"},
    {.magic = {BYTES("\0\0\0\0")}, .at = 4, .also = is_tfrecord, .names = "*.tfrecord *.tfrecords", .what = "records of TensorFlow", .data = "write their texts into a file of text"},
    {.magic = {BYTES("")}, .also = is_mds, .names = "*.mds", .what = "a shard of MosaicML's streaming", .data = "write its texts into a file of text"},
    {.magic = {BYTES("\xde\xc0\xef\xbe")}, .at = 16, .names = "*.mdb *.lmdb", .what = "a database of LMDB", .data = "write its texts into a file of text"},

    // ---- documents, programs, pictures, sounds
    {.magic = {BYTES("%PDF-")}, .names = "*.pdf", .what = "a PDF document", .data = "take its text:\n    pdftotext {} {-}.txt"},
    {.magic = {BYTES("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")}, .names = "*.doc *.xls", .what = "a document of Office", .data = "save it as plain text (UTF-8)"},
    {.magic = {BYTES("\x7f" "ELF")}, .what = "a program (ELF)", .model = "name a model's directory", .data = NO_TEXT},
    {.magic = {BYTES("\r\n\0\0\0\0")}, .at = 2, .names = "*.pyc", .what = "a program of Python, compiled", .data = NO_TEXT},
    {.magic = {BYTES("\x89PNG\r\n"), BYTES("\xff\xd8\xff"), BYTES("GIF8"), BYTES("II*\0")}, .names = "*.png *.jpg *.jpeg *.gif *.tif *.tiff *.webp *.bmp",
     .what = "a picture", .data = NO_TEXT},
    {.magic = {BYTES("RIFF"), BYTES("OggS"), BYTES("fLaC"), BYTES("ID3")}, .inside = BYTES("\0"), .names = "*.wav *.ogg *.flac *.mp3 *.mp4", .what = "sound or film", .data = NO_TEXT},
    {.magic = {BYTES("ftyp")}, .at = 4, .what = "sound or film", .data = NO_TEXT},

    // ---- text with markup or fields
    {.magic = {BYTES("{\""), BYTES("{ \"")}, .also = is_json_lines, .names = "*.jsonl *.ndjson", .what = "JSON, a document in a line", .text = true,
     .data = "its texts alone, here those of the key \"text\", gives\n    python3 -c \"import sys, json; [print(json.loads(x)['text'], end='\\n\\n') "
             "for x in open(sys.argv[1])]\" {} > {-}.txt"},
    {.names = "*.csv *.tsv", .what = "a table", .text = true,
     .data = "its texts alone, here those of the column \"text\", gives\n    python3 -c \"import sys, pandas; [print(t, end='\\n\\n') for t in "
             "pandas.read_csv(sys.argv[1], sep=None, engine='python')['text']]\" {} > {-}.txt"},
    {.names = "*.json", .what = "JSON", .text = true, .data = "take its texts alone, where they alone are meant"},
    {.names = "*.html *.htm *.xml *.rtf *.ipynb *.tex", .what = "text with markup", .text = true, .data = "take the text out of it, where that alone is meant"},

    // ---- text in another encoding
    {.magic = {BYTES("\xff\xfe\0\0"), BYTES("\0\0\xfe\xff")}, .what = "text in UTF-32", .data = AS_TEXT("UTF-32")},
    {.magic = {BYTES("\xff\xfe"), BYTES("\xfe\xff")}, .what = "text in UTF-16", .model = "save it as UTF-8", .data = AS_TEXT("UTF-16")},

    // ---- names of other programs' weights, for files that no row above recognizes
    {.names = "openvino_*.bin openvino_*.xml", .what = "weights of OpenVINO", .model = AS_PUBLISHED},
    {.names = "ggml*.bin *.ggml *.ggmlv3*", .what = "weights of llama.cpp (GGML)", .model = AS_PUBLISHED},
    {.names = "*.pdparams *.pdopt", .what = "weights of PaddlePaddle", .model = AS_PUBLISHED},
    {.names = "*.tflite *.pb *.keras *.ot *.mlmodel *.mlpackage *.engine *.nemo *.params *.mnn *.rknn", .what = "weights of another program", .model = AS_PUBLISHED},
    {.names = "model*.bin weights*.bin", .what = "weights of another program, such as CTranslate2", .model = AS_PUBLISHED},
};
// clang-format on
#define KINDS (sizeof kinds / sizeof *kinds)

static bool starts(const struct file_kind *k, const char *head, size_t bytes) {
    for (int i = 0; i < MAGICS && k->magic[i].text; i++) {
        const struct bytes *m = &k->magic[i];
        if (k->at + m->count <= bytes && !memcmp(head + k->at, m->text, m->count))
            return (!k->inside.count || memmem(head, bytes < FILE_KIND_HEAD ? bytes : FILE_KIND_HEAD,
                                               k->inside.text, k->inside.count)) &&
                   (!k->also || k->also((const unsigned char *)head, bytes));
    }
    return false;
}

static bool is_called(const struct file_kind *k, const char *path) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char pattern[64];
    for (const char *at = k->names; at && *at; at += strspn(at, " ")) {
        size_t n = strcspn(at, " ");
        memcpy(pattern, at, n);
        pattern[n] = 0;
        if (!fnmatch(pattern, base, FNM_CASEFOLD)) return true;
        at += n;
    }
    return false;
}

static const char *todo_of(const struct file_kind *k, enum file_use use) {
    return use == FILE_AS_MODEL ? k->model : k->data;
}

const struct file_kind *file_kind_of_bytes(enum file_use use, const void *head, size_t bytes) {
    for (size_t i = 0; i < KINDS; i++)
        if (todo_of(&kinds[i], use) && starts(&kinds[i], head, bytes)) return &kinds[i];
    return NULL;
}

const struct file_kind *file_kind_of(enum file_use use, const char *path, const void *head, size_t bytes) {
    for (size_t i = 0; i < KINDS; i++)
        if (todo_of(&kinds[i], use) && (starts(&kinds[i], head, bytes) || is_called(&kinds[i], path)))
            return &kinds[i];
    return NULL;
}

bool file_kind_is_text(const struct file_kind *k) { return k && k->text; }

const struct file_kind *file_kind_at(enum file_use use, const char *path) {
    char head[FILE_KIND_HEAD], why[FILE_WHY_MAX];
    int fd = file_open(path, NULL, why);
    ssize_t n = fd >= 0 ? read(fd, head, sizeof head) : 0;
    if (fd >= 0) close(fd);
    return file_kind_of(use, path, head, n > 0 ? (size_t)n : 0);
}

const struct file_kind *file_kind_of_model_files(const char *const *names, int count, int *which) {
    for (size_t i = 0; i < KINDS; i++)
        for (*which = 0; kinds[i].model && *which < count; ++*which)
            if (is_called(&kinds[i], names[*which])) return &kinds[i];
    return NULL;
}

// Returns the text with {}, {-} and {/} replaced.
static char *filled(const char *text, const char *path) {
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    // A .txt file keeps its extension, so that no command overwrites the file that it reads.
    bool ends = dot && dot > (slash ? slash + 1 : path) && strcasecmp(dot, ".txt");
    char *plain[] = {xstrdup(path), xasprintf("%.*s", ends ? (int)(dot - path) : (int)strlen(path), path),
                     slash ? xasprintf("%.*s", slash == path ? 1 : (int)(slash - path), path) : xstrdup(".")};
    static const char *const places[] = {"{}", "{-}", "{/}"};
    char *out = xstrdup("");
    for (const char *at = text; *at;) {
        int p = 0;
        while (p < 3 && strncmp(at, places[p], strlen(places[p])) != 0) p++;
        size_t plainly = strcspn(at + 1, "{") + 1;
        char *word = p < 3 ? shell_word(plain[p]) : xasprintf("%.*s", (int)plainly, at);
        text_add(&out, "%s", word);
        at += p < 3 ? strlen(places[p]) : plainly;
        free(word);
    }
    for (int i = 0; i < 3; i++) free(plain[i]);
    return out;
}

char *file_kind_text(enum file_use use, const struct file_kind *k, const char *path) {
    if (!k) return NULL;
    char *how = filled(todo_of(k, use), path), *text = xasprintf("%s is %s: %s", path, k->what, how);
    free(how);
    return text;
}
